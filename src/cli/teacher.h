// --teacher: soft labels of training images, by a trained net or from a file.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "data/dataset.h"

namespace bitloom::cli {

inline constexpr const char* soft_labels_name = "soft-labels.safetensors";  // in a run folder: what --resume reads

struct TeacherSettings {
  std::string net;        // a run, a model or a file of soft labels; empty: none
  std::size_t shift = 3;  // --teacher-shift
  std::string labels;     // as the file that a new run keeps; at rank 0

  // targets: what the teacher's probabilities are mixed into. --teacher-share is the command's.
  void declare(Options& options, const std::string& targets);
  // Pixels between the places at which the teacher labels images: --teacher-shift, but no more than augmentation moves them.
  // Throws Error(usage) where it is asked for and is more than that.
  int step(const Options& options, int crop_padding) const;

  // Collective, with a teacher: gives a training set its soft labels. Those that the run in `folder` began with, where it goes
  // on; or those of a run or model file (of a binary or convolutional net), of which each rank that has it labels a share of
  // the images, at nine places `step` pixels apart (data/soft_labels.h) or, with a step of 0, as they are; or those in rank 0's
  // file of soft labels. Throws what is wrong with it, Error(usage) where the run's are of other images or --teacher-shift is
  // not theirs; Error(interrupted) when asked to stop.
  void label(Session& session, const Options& options, const std::filesystem::path& folder, bool resume, int step,
             data::Dataset& train);
};

}  // namespace bitloom::cli
