// --teacher: soft labels of training images, by a trained net or from a file.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "data/dataset.h"

namespace bitloom::cli {

inline constexpr const char* soft_labels_name = "soft-labels.safetensors";  // in a run folder: what --resume reads

// Collective: gives a training set the soft labels of `teacher`: of a run or model file (of a binary or convolutional net),
// of which each rank that has it labels a share of the images, at nine places `step` pixels apart (data/soft_labels.h) or, with
// a step of 0, as they are; or those in rank 0's file of soft labels. Throws what is wrong with it; Error(interrupted) when
// asked to stop.
void add_soft_labels(Session& session, const std::string& teacher, data::Dataset& train, int step);

// Collective: the same of what add_soft_labels() gave when a run began, from its folder. False where that is not there or was
// of another teacher. Throws Error(usage) where it is of other images.
bool restore_soft_labels(Session& session, const std::filesystem::path& run, const std::string& teacher, data::Dataset& train);

}  // namespace bitloom::cli
