// A trained binary net as a graph of ONNX's standard operators, which other programs run: layerwise/FORMAT.md in floats that
// hold integers. Sums stay below 2^24 in f32 and below 2^53 in f64, so they are exact in whatever order they are added.
#pragma once

#include <string>

#include "layerwise/model.h"

namespace bitloom::models {

// The bytes of an ONNX file, the same for the same model.
//   image   input, u8 (N, colours, height, width)
//   scores  f32 (N, classes): mean over the votes of log-softmax of their logits
//   logits  f32 (N, votes, classes): for each view of the image, each head of the net's classifier; bit-equal to
//   Head::predict()
// Its metadata are "classes", a JSON list of names, and "votes", a JSON list of {"mirror", "down", "right", "layer"}: the view
// has at (y, x) the pixel (y + down, x + right), mirrored afterwards. All views vote, whatever Views::sure says.
// Throws Error(usage) for a shift that is not smaller than the image, Error(data) for a net whose sums could be inexact.
std::string to_onnx(const layerwise::Model& model, const layerwise::Views& views);

// The same in the dialect QONNX, for one image (N = 1): maps and weights are f32 of 1 (a set bit) and -1, which nodes
// BipolarQuant of the domain qonnx.custom_op.general make, ternary weights come from nodes Quant. 32 times as large where
// weights make up the file, more where rows have several thresholds, whose weights are there for each of them. What the package
// qonnx computes from it has the same bits.
std::string to_qonnx(const layerwise::Model& model, const layerwise::Views& views);

}  // namespace bitloom::models
