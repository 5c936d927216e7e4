#include "models/file_tokenizer.h"

#include <span>

#include "core/error.h"

namespace bitloom::models {

void add_tokenizer(TensorFile& file, const data::Tokenizer& tokenizer) {
  const std::string text = tokenizer.serialize();
  file.put_raw(tokenizer_name, std::as_bytes(std::span(text)));
}

std::vector<std::byte> tokenizer_text(const TensorSource& file, const std::string& name) {
  const auto [dtype, shape] = file.describe(tokenizer_name);
  if (dtype != DType::u8) fail(ErrorKind::data, "{}: a tokenizer of type {}; expected U8", name, dtype_name(dtype));
  const bitloom::Tensor tensor = file.read(tokenizer_name, dtype, shape);
  return {tensor.bytes.begin(), tensor.bytes.end()};
}

std::unique_ptr<data::Tokenizer> parse_file_tokenizer(const std::vector<std::byte>& text, const std::string& name) {
  return data::parse_tokenizer({reinterpret_cast<const char*>(text.data()), text.size()}, name + ": tokenizer");
}

}  // namespace bitloom::models
