// Writes ONNX files: a graph of operators as a message of Protocol Buffers. Field numbers and enumerations are those of
// onnx.proto (https://github.com/onnx/onnx).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/protobuf.h"

namespace bitloom::models {

// TensorProto.DataType
enum class OnnxType : int { f32 = 1, u8 = 2, i8 = 3, i16 = 5, i32 = 6, i64 = 7, f64 = 11 };

template <typename T>
constexpr OnnxType onnx_type_of() {
  if constexpr (std::same_as<T, float>) return OnnxType::f32;
  if constexpr (std::same_as<T, double>) return OnnxType::f64;
  if constexpr (std::same_as<T, std::uint8_t>) return OnnxType::u8;
  if constexpr (std::same_as<T, std::int8_t>) return OnnxType::i8;
  if constexpr (std::same_as<T, std::int16_t>) return OnnxType::i16;
  if constexpr (std::same_as<T, std::int32_t>) return OnnxType::i32;
  if constexpr (std::same_as<T, std::int64_t>) return OnnxType::i64;
}

struct OnnxAttribute {
  const char* name;
  std::variant<std::int64_t, std::vector<std::int64_t>, const char*> value;
};

// An input or output of a graph. A size of -1 is the batch, N, which may be any.
struct OnnxValue {
  std::string name;
  OnnxType type;
  std::vector<std::int64_t> shape;
  std::string doc;
};

// A graph of operators of the standard's set 17, in the order in which they are added: the one of computing. Values are known
// by their names, which this gives: SCOPE/OPERATOR.
class OnnxGraph {
 public:
  static constexpr int operator_set = 17;
  static constexpr int ir_version = 8;

  void scope(std::string name) { scope_ = std::move(name); }

  void input(const OnnxValue& value);
  // Outputs have the order of these calls, whichever is computed first.
  void output(const OnnxValue& value);
  // The node that makes the output of this name.
  void output_node(const std::string& name, const char* operation, const std::vector<std::string>& inputs,
                   const std::vector<OnnxAttribute>& attributes = {});

  // Return the name of the value. `values` has as many elements as the shape says; an empty shape is a scalar.
  std::string node(const char* operation, const std::vector<std::string>& inputs,
                   const std::vector<OnnxAttribute>& attributes = {});
  template <typename T>
  std::string constant(const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    return constant(onnx_type_of<T>(), shape, std::as_bytes(std::span(values)));
  }
  template <typename T>
  std::string scalar(T value) {
    return constant<T>({}, {value});
  }

  // The bytes of a file. Throws Error(data) where they are 2 GiB or more, which no message may have.
  std::string file(const std::string& doc, const std::map<std::string, std::string>& metadata) const;

 private:
  std::string constant(OnnxType type, const std::vector<std::int64_t>& shape, std::span<const std::byte> values);
  std::string new_name(const char* kind);

  std::string scope_;
  std::map<std::string, int> uses_;                       // of a name
  ProtoMessage nodes_, initializers_, inputs_, outputs_;  // fields of the graph
};

}  // namespace bitloom::models
