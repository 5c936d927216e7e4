// Soft labels: for each training image the probabilities that a teacher gives its classes (Hinton, Vinyals, Dean: Distilling
// the Knowledge in a Neural Network, 2015). A byte per class, so that they are the same bits on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/safetensors.h"
#include "data/augment.h"
#include "data/dataset.h"

namespace bitloom::data {

inline constexpr unsigned soft_label_sum = 255;  // of the bytes of a distribution
inline constexpr const char* soft_labels_tensor = "soft_labels";

// Bytes (C) in proportion to `probabilities` (C), which sum up to 1: rounded down, and one more for those that lost most by it,
// of equals the lower class. Throws Error(data) for what is no distribution: a value below 0, above 1 or not a number.
void quantise_probabilities(std::span<const float> probabilities, std::span<std::uint8_t> bytes);

// A net that learns from augmented images learns more from what the teacher says of those (Beyer et al., Knowledge
// distillation: a good teacher is patient and consistent, 2022). In between: labels of images at nine places, moved by -step, 0
// and step pixels down, then across, and the nearest one for each augmented image.
std::array<Shift, 9> label_shifts(int step);
// Soft labels of each image: 1, or 9 with a step.
std::size_t labels_per_image(int step);
// (C): those of image i of a set with soft labels, as it is moved.
std::span<const std::uint8_t> soft_label(const Dataset& dataset, std::size_t i, const Shift& shift);

// A name for the soft labels of a set, by their content; empty where it has none.
std::string soft_labels_hash(const Dataset& dataset);

// A file with the soft labels of a set, u8, (N, C) or (N, 9, C), and the hash of the images that they are of.
TensorFile soft_labels_file(const Dataset& dataset);

// Gives a set the soft labels of a file that is called `name`. Other programs may leave out the hash. Throws Error(data) for
// labels of other images or classes, and for rows that do not sum up to soft_label_sum.
void take_soft_labels(const TensorFile& file, const std::string& name, Dataset& dataset);

}  // namespace bitloom::data
