// Documents in files of text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::data {

// Whether a file of that name holds a JSON object per line (.jsonl, .ndjson), and not plain text.
bool is_json_lines(std::string_view file);

struct TextInput {
  // UTF-8: plain text, or as is_json_lines() says.
  std::vector<std::string> files;
  // Separator of documents in plain text: "file" (none: a file is a document), "blank-lines", or a line such as
  // "<|endoftext|>", which is left out. What is empty but for white space is no document.
  std::string documents = "file";
  // Name of the string in JSON objects that is the document.
  std::string field = "text";
};

struct Document {
  std::string id;         // "file" or "file:line"
  std::string_view text;  // valid during the call
};

// Calls take(document) for all of them, in order. Throws Error(usage) if there are no files, and Error(data) that names file
// and line for what is not UTF-8, not a JSON object, or lacks the field.
void for_each_document(const TextInput& input, const std::function<void(const Document& document)>& take);

}  // namespace bitloom::data
