// What training a GPT takes, told before any memory is asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/gpt/config.h"
#include "train/trainer.h"

namespace bitloom::models {

// Peaks in bytes, as nn::Pool counts them.
struct GptMemory {
  std::uint64_t parameters = 0, gradients = 0, optimizer = 0, stash = 0;
  std::uint64_t activations = 0;  // on their way, logits included: at most about so much
  std::uint64_t checkpoint = 0;   // train::MemoryNeeds

  std::uint64_t total() const { return parameters + gradients + optimizer + stash + activations; }
};

// For a number of sequences of the context's length in a micro-batch.
GptMemory predict_memory(const GptConfig& config, std::size_t sequences, const train::TrainOptions& options);

// The share of what a forward pass keeps that `bits` bits for every activation's input save, as Novikov et al. 2022 count it
// (Novikov et al. 2022, table 2): for a PyTorch of that time, in f32, in blocks alone, with attention's T x T matrices. Its
// GELU by tanh keeps four tensors, all other activations one; see memory.cpp. GPT-2: 42, 41, 39, 38%; RoBERTa-base: 16, 15, 15,
// 14%.
double paper_saving(const GptConfig& config, unsigned bits);

// Tokens of a micro-batch beyond which a device is hardly faster: a CPU as measured; a large GPU as its many multiprocessors
// and the time between kernels suggest, which nobody has measured yet.
inline constexpr std::size_t enough_tokens = 4096, enough_tokens_on_gpu = 32768;

}  // namespace bitloom::models
