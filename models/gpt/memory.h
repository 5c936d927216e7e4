// Memory of a GPT that few bits of activations save, and how much of it a device can use at once.
#pragma once

#include <cstddef>

#include "models/gpt/config.h"

namespace bitloom::models {

// The share of what a forward pass keeps that `bits` bits for every activation's input save, as Novikov et al. 2022 count it
// (Novikov et al. 2022, table 2): for a PyTorch of that time, in f32, in blocks alone, with attention's T x T matrices. Its
// GELU by tanh keeps four tensors, all other activations one; see memory.cpp. GPT-2: 42, 41, 39, 38%; RoBERTa-base: 16, 15, 15,
// 14%.
double paper_saving(const GptConfig& config, unsigned bits);

// Tokens of a micro-batch beyond which a device is hardly faster: a CPU as measured; a large GPU as its many multiprocessors
// and the time between kernels suggest, which nobody has measured yet.
inline constexpr std::size_t enough_tokens = 4096, enough_tokens_on_gpu = 32768;

}  // namespace bitloom::models
