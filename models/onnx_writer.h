// Writes ONNX files: a graph of operators as a message of Protocol Buffers. Field numbers and enumerations are those of
// onnx.proto (https://github.com/onnx/onnx).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/protobuf.h"

namespace bitloom::models {

// TensorProto.DataType
enum class OnnxType : int { f32 = 1, u8 = 2, i8 = 3, i16 = 5, i32 = 6, i64 = 7, f16 = 10, f64 = 11 };

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
  std::variant<std::int64_t, std::vector<std::int64_t>, const char*, float> value;
};

// A size of an input or output of a graph: a number, or the name of one that may be any.
using OnnxSize = std::variant<std::int64_t, std::string>;

struct OnnxValue {
  std::string name;
  OnnxType type;
  std::vector<OnnxSize> shape;
  std::string doc;
};

// A graph of operators of the standard's set 17, in the order in which they are added: the one of computing. Values are known
// by their names, which this gives: SCOPE/OPERATOR.
class OnnxGraph {
 public:
  static constexpr int operator_set = 17;
  static constexpr int ir_version = 8;
  static constexpr std::uint64_t largest_file = (std::uint64_t{1} << 31U) - 1;  // bytes that a message may have

  void scope(std::string name) { scope_ = std::move(name); }
  const std::string& scope() const { return scope_; }

  void input(const OnnxValue& value);
  // Outputs have the order of these calls, whichever is computed first.
  void output(const OnnxValue& value);
  // The node that makes the outputs of these names. domain: of the operator, "" for the standard's; of others the version is 1.
  void output_nodes(const std::vector<std::string>& names, const char* operation, const std::vector<std::string>& inputs,
                    const std::vector<OnnxAttribute>& attributes = {}, const char* domain = "");
  void output_node(const std::string& name, const char* operation, const std::vector<std::string>& inputs,
                   const std::vector<OnnxAttribute>& attributes = {}) {
    output_nodes({name}, operation, inputs, attributes);
  }

  // Return the name of the value. `values` has as many elements as the shape says; an empty shape is a scalar.
  std::string node(const char* operation, const std::vector<std::string>& inputs,
                   const std::vector<OnnxAttribute>& attributes = {}, const char* domain = "");
  // Names of several values of one node.
  std::vector<std::string> nodes(std::size_t count, const char* operation, const std::vector<std::string>& inputs,
                                 const std::vector<OnnxAttribute>& attributes = {});
  template <typename T>
  std::string constant(const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    return constant(onnx_type_of<T>(), shape, std::as_bytes(std::span(values)));
  }
  template <typename T>
  std::string scalar(T value) {
    return constant<T>({}, {value});
  }
  // A large constant of a name of its own, whose bytes are asked for when they are written.
  void tensor(std::string name, OnnxType type, std::vector<std::int64_t> shape, std::function<std::vector<std::byte>()> values);

  // The bytes of a file without large constants. Throws Error(data) where they are 2 GiB or more, which no message may have.
  std::string file(const std::string& doc, const std::map<std::string, std::string>& metadata) const;

  struct Saved {
    std::uint64_t bytes = 0;     // of all files
    std::filesystem::path data;  // the second one, if there is one
  };
  // Writes a file; one large constant at a time is in memory. Where the file would have more than `most` bytes, large constants
  // go to a second one beside it, PATH.data, which has to stay there under its name (external data of the standard); it is
  // written first. Throws Error(data) where even then the file is too large, Error(io), and what `values` of constants throw.
  Saved save(const std::filesystem::path& path, const std::string& doc, const std::map<std::string, std::string>& metadata,
             std::uint64_t most = largest_file) const;

 private:
  struct Tensor {
    std::string name;
    OnnxType type;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes;
    std::function<std::vector<std::byte>()> values;
  };
  // Parts of a file before and after the large constants inside it; heads: the parts before each of them.
  struct Frame {
    std::string before, after;
    std::vector<std::string> heads;
    std::uint64_t bytes = 0;  // of the file
  };

  std::string constant(OnnxType type, const std::vector<std::int64_t>& shape, std::span<const std::byte> values);
  std::string new_name(const char* kind);
  ProtoMessage external_tensors(const std::string& file) const;
  Frame frame(const std::string& doc, const std::map<std::string, std::string>& metadata, const ProtoMessage& initializers,
              std::span<const Tensor> inside) const;

  std::string scope_;
  std::map<std::string, int> uses_;                       // of a name
  std::set<std::string> domains_;                         // of operators that are not the standard's
  ProtoMessage nodes_, initializers_, inputs_, outputs_;  // fields of the graph
  std::vector<Tensor> tensors_;
};

// Bytes of one element.
std::size_t onnx_type_size(OnnxType type);

// `value` as numbers of another type.
std::string onnx_cast(OnnxGraph& graph, const std::string& value, OnnxType type);
// `value` in another shape: -1 is what is left, 0 the size that it has there.
std::string onnx_reshape(OnnxGraph& graph, const std::string& value, const std::vector<std::int64_t>& shape);
// Several values one after the other along an axis; one alone as it is.
std::string onnx_concat(OnnxGraph& graph, const std::vector<std::string>& values, std::int64_t axis);

}  // namespace bitloom::models
