#include "models/onnx_writer.h"

#include <bit>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/version.h"

namespace bitloom::models {
namespace {

static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");

// Field numbers, by message.
namespace model_field {
constexpr unsigned ir_version = 1, producer_name = 2, producer_version = 3, doc_string = 6, graph = 7, opset_import = 8,
                   metadata_props = 14;
}
namespace graph_field {
constexpr unsigned node = 1, name = 2, initializer = 5, input = 11, output = 12;
}
namespace node_field {
constexpr unsigned input = 1, output = 2, name = 3, op_type = 4, attribute = 5, domain = 7;
}
namespace attribute_field {
constexpr unsigned name = 1, f = 2, i = 3, s = 4, ints = 8, type = 20;
}
namespace tensor_field {
constexpr unsigned dims = 1, data_type = 2, name = 8, raw_data = 9, external_data = 13, data_location = 14;
}
namespace value_field {
constexpr unsigned name = 1, type = 2, doc_string = 3;
}
namespace type_field {
constexpr unsigned tensor_type = 1, elem_type = 1, shape = 2, dim = 1, dim_value = 1, dim_param = 2;
}
namespace pair_field {  // OperatorSetIdProto: domain, version; StringStringEntryProto: key, value
constexpr unsigned first = 1, second = 2;
}
// AttributeProto.AttributeType
constexpr int attribute_float = 1, attribute_int = 2, attribute_string = 3, attribute_ints = 7;
constexpr int location_external = 1;                // TensorProto.DataLocation
constexpr std::uint64_t external_alignment = 4096;  // a page: readers may map tensors into memory

std::uint64_t next_page(std::uint64_t place) {
  return (place + external_alignment - 1) / external_alignment * external_alignment;
}

ProtoMessage pair_message(const std::string& first, const std::string& second) {
  ProtoMessage message;
  message.text(pair_field::first, first);
  message.text(pair_field::second, second);
  return message;
}

// All of a tensor but its values.
ProtoMessage tensor_message(const std::string& name, OnnxType type, const std::vector<std::int64_t>& shape) {
  ProtoMessage message;
  for (const std::int64_t size : shape) message.integer(tensor_field::dims, size);
  message.integer(tensor_field::data_type, static_cast<int>(type));
  message.text(tensor_field::name, name);
  return message;
}

ProtoMessage attribute_message(const OnnxAttribute& attribute) {
  ProtoMessage message;
  message.text(attribute_field::name, attribute.name);
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) {
    message.integer(attribute_field::i, *number);
    message.integer(attribute_field::type, attribute_int);
  } else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&attribute.value)) {
    for (const std::int64_t each : *numbers) message.integer(attribute_field::ints, each);
    message.integer(attribute_field::type, attribute_ints);
  } else if (const auto* real = std::get_if<float>(&attribute.value)) {
    message.real32(attribute_field::f, *real);
    message.integer(attribute_field::type, attribute_float);
  } else {
    message.text(attribute_field::s, std::get<const char*>(attribute.value));
    message.integer(attribute_field::type, attribute_string);
  }
  return message;
}

ProtoMessage value_message(const OnnxValue& value) {
  ProtoMessage shape;
  for (const OnnxSize& size : value.shape) {
    ProtoMessage dim;
    if (const auto* name = std::get_if<std::string>(&size)) {
      dim.text(type_field::dim_param, *name);
    } else {
      dim.integer(type_field::dim_value, std::get<std::int64_t>(size));
    }
    shape.message(type_field::dim, dim);
  }
  ProtoMessage tensor, type, message;
  tensor.integer(type_field::elem_type, static_cast<int>(value.type));
  tensor.message(type_field::shape, shape);
  type.message(type_field::tensor_type, tensor);
  message.text(value_field::name, value.name);
  message.message(value_field::type, type);
  message.text(value_field::doc_string, value.doc);
  return message;
}

}  // namespace

void OnnxGraph::input(const OnnxValue& value) { inputs_.message(graph_field::input, value_message(value)); }

void OnnxGraph::output(const OnnxValue& value) { outputs_.message(graph_field::output, value_message(value)); }

std::string OnnxGraph::node(const char* operation, const std::vector<std::string>& inputs,
                            const std::vector<OnnxAttribute>& attributes, const char* domain) {
  std::string name = new_name(operation);
  output_nodes({name}, operation, inputs, attributes, domain);
  return name;
}

std::vector<std::string> OnnxGraph::nodes(std::size_t count, const char* operation, const std::vector<std::string>& inputs,
                                          const std::vector<OnnxAttribute>& attributes) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(new_name(operation));
  output_nodes(names, operation, inputs, attributes);
  return names;
}

std::string OnnxGraph::constant(OnnxType type, const std::vector<std::int64_t>& shape, std::span<const std::byte> values) {
  std::string name = new_name("constant");
  ProtoMessage tensor = tensor_message(name, type, shape);
  tensor.text(tensor_field::raw_data, {reinterpret_cast<const char*>(values.data()), values.size()});
  initializers_.message(graph_field::initializer, tensor);
  return name;
}

void OnnxGraph::tensor(std::string name, OnnxType type, std::vector<std::int64_t> shape,
                       std::function<std::vector<std::byte>()> values) {
  std::uint64_t bytes = onnx_type_size(type);
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  tensors_.push_back({std::move(name), type, std::move(shape), bytes, std::move(values)});
}

std::string OnnxGraph::new_name(const char* kind) {
  const std::string name = scope_ + "/" + kind;
  const int before = uses_[name]++;
  return before == 0 ? name : name + fmt::format("_{}", before + 1);
}

void OnnxGraph::output_nodes(const std::vector<std::string>& names, const char* operation,
                             const std::vector<std::string>& inputs, const std::vector<OnnxAttribute>& attributes,
                             const char* domain) {
  ProtoMessage node;
  for (const std::string& each : inputs) node.text(node_field::input, each);
  for (const std::string& each : names) node.text(node_field::output, each);
  node.text(node_field::name, names.front());
  node.text(node_field::op_type, operation);
  for (const OnnxAttribute& each : attributes) node.message(node_field::attribute, attribute_message(each));
  if (*domain != '\0') {
    node.text(node_field::domain, domain);
    domains_.insert(domain);
  }
  nodes_.message(graph_field::node, node);
}

OnnxGraph::Frame OnnxGraph::frame(const std::string& doc, const std::map<std::string, std::string>& metadata,
                                  const ProtoMessage& initializers, std::span<const Tensor> inside) const {
  ProtoMessage first;
  first.append(nodes_);
  first.text(graph_field::name, "net");
  first.append(initializers);
  ProtoMessage last;
  last.append(inputs_);
  last.append(outputs_);
  Frame result;
  std::uint64_t graph = first.bytes().size() + last.bytes().size();
  for (const Tensor& tensor : inside) {
    ProtoMessage fields = tensor_message(tensor.name, tensor.type, tensor.shape);
    fields.open(tensor_field::raw_data, tensor.bytes);
    ProtoMessage head;
    head.open(graph_field::initializer, fields.bytes().size() + tensor.bytes);
    head.append(fields);
    graph += head.bytes().size() + tensor.bytes;
    result.heads.push_back(head.bytes());
  }
  ProtoMessage model;
  model.integer(model_field::ir_version, ir_version);
  model.text(model_field::producer_name, "bitloom");
  model.text(model_field::producer_version, version);
  model.text(model_field::doc_string, doc);
  model.open(model_field::graph, graph);
  const std::uint64_t outside = model.bytes().size();
  model.append(first);
  result.before = model.bytes();
  ProtoMessage rest;
  const auto add_operators = [&rest](const std::string& domain, int number) {
    ProtoMessage operators;
    operators.text(pair_field::first, domain);
    operators.integer(pair_field::second, number);
    rest.message(model_field::opset_import, operators);
  };
  add_operators("", operator_set);
  for (const std::string& domain : domains_) add_operators(domain, 1);
  for (const auto& [key, value] : metadata) rest.message(model_field::metadata_props, pair_message(key, value));
  result.bytes = outside + graph + rest.bytes().size();
  last.append(rest);
  result.after = last.bytes();
  return result;
}

ProtoMessage OnnxGraph::external_tensors(const std::string& file) const {
  ProtoMessage all;
  std::uint64_t place = 0;
  for (const Tensor& tensor : tensors_) {
    place = next_page(place);
    ProtoMessage message = tensor_message(tensor.name, tensor.type, tensor.shape);
    message.message(tensor_field::external_data, pair_message("location", file));
    message.message(tensor_field::external_data, pair_message("offset", std::to_string(place)));
    message.message(tensor_field::external_data, pair_message("length", std::to_string(tensor.bytes)));
    message.integer(tensor_field::data_location, location_external);
    all.message(graph_field::initializer, message);
    place += tensor.bytes;
  }
  return all;
}

namespace {

void check_message_size(std::uint64_t bytes, std::uint64_t most) {
  if (bytes <= most) return;
  fail(ErrorKind::data, "an ONNX file of {} bytes; expected at most {}, as many as a message of Protocol Buffers may have",
       bytes, most);
}

}  // namespace

std::string OnnxGraph::file(const std::string& doc, const std::map<std::string, std::string>& metadata) const {
  if (!tensors_.empty()) fail(ErrorKind::internal, "an ONNX graph with the large constant '{}' in memory", tensors_[0].name);
  const Frame all = frame(doc, metadata, initializers_, {});
  check_message_size(all.bytes, largest_file);
  return all.before + all.after;
}

namespace {

// PATH.data, PATH.1.data, ...: names of the second file that belongs to one of ONNX.
std::filesystem::path data_name(const std::filesystem::path& path, std::size_t number) {
  std::filesystem::path name = path;
  name += number == 0 ? std::string(".data") : fmt::format(".{}.data", number);
  return name;
}

// One that nothing has: until the new file is whole, the one before has its own.
std::filesystem::path free_data_name(const std::filesystem::path& path) {
  std::error_code error;
  std::size_t number = 0;
  while (std::filesystem::exists(data_name(path, number), error)) ++number;
  return data_name(path, number);
}

// The data of the file that is at PATH, which names it; "" if there is none.
std::filesystem::path data_of_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  const FileMapping file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  constexpr std::size_t most = 16;
  for (std::size_t number = 0; number < most; ++number) {
    const std::filesystem::path name = data_name(path, number);
    if (std::filesystem::exists(name, error) && text.find(name.filename().string()) != std::string_view::npos) return name;
  }
  return {};
}

}  // namespace

OnnxGraph::Saved OnnxGraph::save(const std::filesystem::path& path, const std::string& doc,
                                 const std::map<std::string, std::string>& metadata, std::uint64_t most) const {
  const auto values_of = [](const Tensor& tensor) {
    std::vector<std::byte> values = tensor.values();
    if (values.size() == tensor.bytes) return values;
    fail(ErrorKind::internal, "the constant '{}' of {} bytes was given {}", tensor.name, tensor.bytes, values.size());
  };
  const auto take_text = [](const TakeBytes& take, const std::string& text) { take(std::as_bytes(std::span(text))); };
  Frame all = frame(doc, metadata, initializers_, tensors_);
  Saved saved{all.bytes, {}};
  const std::filesystem::path data_before = data_of_file(path);
  std::span<const Tensor> inside = tensors_;
  if (all.bytes > most) {
    saved.data = free_data_name(path);
    ProtoMessage initializers = initializers_;
    initializers.append(external_tensors(saved.data.filename().string()));
    inside = {};
    all = frame(doc, metadata, initializers, inside);
    check_message_size(all.bytes, most);
    saved.bytes = all.bytes;
    write_atomically(saved.data, [&](const TakeBytes& take) {
      std::uint64_t place = 0;
      for (const Tensor& tensor : tensors_) {
        take(std::vector<std::byte>(next_page(place) - place));
        take(values_of(tensor));
        place = next_page(place) + tensor.bytes;
      }
      saved.bytes += place;
    });
  }
  try {
    write_atomically(path, [&](const TakeBytes& take) {
      take_text(take, all.before);
      for (std::size_t i = 0; i < inside.size(); ++i) {
        take_text(take, all.heads[i]);
        take(values_of(inside[i]));
      }
      take_text(take, all.after);
    });
  } catch (...) {
    std::error_code ignored;
    if (!saved.data.empty()) std::filesystem::remove(saved.data, ignored);  // gigabytes that nothing reads
    throw;
  }
  std::error_code ignored;
  if (!data_before.empty() && data_before != saved.data) std::filesystem::remove(data_before, ignored);
  return saved;
}

std::size_t onnx_type_size(OnnxType type) {
  switch (type) {
    case OnnxType::u8:
    case OnnxType::i8: return 1;
    case OnnxType::i16:
    case OnnxType::f16: return 2;
    case OnnxType::f32:
    case OnnxType::i32: return 4;
    case OnnxType::i64:
    case OnnxType::f64: return 8;
  }
  fail(ErrorKind::internal, "there is no ONNX type {}", static_cast<int>(type));
}

std::string onnx_cast(OnnxGraph& graph, const std::string& value, OnnxType type) {
  return graph.node("Cast", {value}, {{"to", static_cast<std::int64_t>(type)}});
}

std::string onnx_reshape(OnnxGraph& graph, const std::string& value, const std::vector<std::int64_t>& shape) {
  return graph.node("Reshape", {value, graph.constant({static_cast<std::int64_t>(shape.size())}, shape)});
}

std::string onnx_concat(OnnxGraph& graph, const std::vector<std::string>& values, std::int64_t axis) {
  return values.size() == 1 ? values.front() : graph.node("Concat", values, {{"axis", axis}});
}

}  // namespace bitloom::models
