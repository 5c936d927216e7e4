// A 3x3 convolution of oneDNN, to stand beside ours: forward inference in the layouts that oneDNN likes best.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bitloom::bench {

enum class FloatType { f32, bf16 };

struct FloatConvShape {
  std::size_t images, in_channels, out_channels, size;  // size x size pixels, padding 1
};

class OnednnConv {
 public:
  // Source (N,C,S,S), weights (O,C,3,3). Null where the library has no such convolution for this CPU. Runs with the threads
  // that OpenMP has at this moment. The destination is of the same type as the source.
  static std::unique_ptr<OnednnConv> make(FloatType type, const FloatConvShape& shape, std::span<const float> source,
                                          std::span<const float> weights);
  ~OnednnConv();

  void run();
  std::vector<float> output() const;   // (N,O,S,S)
  std::string implementation() const;  // as the library calls it

 private:
  struct State;
  explicit OnednnConv(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

std::string onednn_version();

}  // namespace bitloom::bench
