#include "models/onnx_writer.h"

#include <bit>
#include <limits>

#include "core/error.h"
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
constexpr unsigned input = 1, output = 2, name = 3, op_type = 4, attribute = 5;
}
namespace attribute_field {
constexpr unsigned name = 1, i = 3, s = 4, ints = 8, type = 20;
}
namespace tensor_field {
constexpr unsigned dims = 1, data_type = 2, name = 8, raw_data = 9;
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
constexpr int attribute_int = 2, attribute_string = 3, attribute_ints = 7;

ProtoMessage attribute_message(const OnnxAttribute& attribute) {
  ProtoMessage message;
  message.text(attribute_field::name, attribute.name);
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) {
    message.integer(attribute_field::i, *number);
    message.integer(attribute_field::type, attribute_int);
  } else if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&attribute.value)) {
    for (const std::int64_t each : *numbers) message.integer(attribute_field::ints, each);
    message.integer(attribute_field::type, attribute_ints);
  } else {
    message.text(attribute_field::s, std::get<const char*>(attribute.value));
    message.integer(attribute_field::type, attribute_string);
  }
  return message;
}

ProtoMessage value_message(const OnnxValue& value) {
  ProtoMessage shape;
  for (const std::int64_t size : value.shape) {
    ProtoMessage dim;
    if (size < 0) {
      dim.text(type_field::dim_param, "N");
    } else {
      dim.integer(type_field::dim_value, size);
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
                            const std::vector<OnnxAttribute>& attributes) {
  std::string name = new_name(operation);
  output_node(name, operation, inputs, attributes);
  return name;
}

std::string OnnxGraph::constant(OnnxType type, const std::vector<std::int64_t>& shape, std::span<const std::byte> values) {
  std::string name = new_name("constant");
  ProtoMessage tensor;
  for (const std::int64_t size : shape) tensor.integer(tensor_field::dims, size);
  tensor.integer(tensor_field::data_type, static_cast<int>(type));
  tensor.text(tensor_field::name, name);
  tensor.text(tensor_field::raw_data, {reinterpret_cast<const char*>(values.data()), values.size()});
  initializers_.message(graph_field::initializer, tensor);
  return name;
}

std::string OnnxGraph::new_name(const char* kind) {
  const std::string name = scope_ + "/" + kind;
  const int before = uses_[name]++;
  return before == 0 ? name : name + fmt::format("_{}", before + 1);
}

void OnnxGraph::output_node(const std::string& name, const char* operation, const std::vector<std::string>& inputs,
                            const std::vector<OnnxAttribute>& attributes) {
  ProtoMessage node;
  for (const std::string& each : inputs) node.text(node_field::input, each);
  node.text(node_field::output, name);
  node.text(node_field::name, name);
  node.text(node_field::op_type, operation);
  for (const OnnxAttribute& each : attributes) node.message(node_field::attribute, attribute_message(each));
  nodes_.message(graph_field::node, node);
}

std::string OnnxGraph::file(const std::string& doc, const std::map<std::string, std::string>& metadata) const {
  ProtoMessage graph;
  graph.append(nodes_);
  graph.text(graph_field::name, "net");
  graph.append(initializers_);
  graph.append(inputs_);
  graph.append(outputs_);
  ProtoMessage operators;
  operators.text(pair_field::first, "");
  operators.integer(pair_field::second, operator_set);
  ProtoMessage model;
  model.integer(model_field::ir_version, ir_version);
  model.text(model_field::producer_name, "bitloom");
  model.text(model_field::producer_version, version);
  model.text(model_field::doc_string, doc);
  model.message(model_field::graph, graph);
  model.message(model_field::opset_import, operators);
  for (const auto& [key, value] : metadata) {
    ProtoMessage entry;
    entry.text(pair_field::first, key);
    entry.text(pair_field::second, value);
    model.message(model_field::metadata_props, entry);
  }
  if (model.bytes().size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(ErrorKind::data, "an ONNX file of {} bytes; expected less than 2 GiB, the most of a message of Protocol Buffers",
         model.bytes().size());
  }
  return model.bytes();
}

}  // namespace bitloom::models
