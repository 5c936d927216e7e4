// Documents in text and JSON Lines.
#include "data/text/documents.h"

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

using Found = std::vector<std::pair<std::string, std::string>>;

Found read(const TempDir& folder, const TextInput& input) {
  Found found;
  for_each_document(input, [&](const Document& document) {
    found.emplace_back(document.id.substr((folder.path().string() + "/").size()), document.text);
  });
  return found;
}

TextInput files(const TempDir& folder, const std::vector<std::string>& names, const std::string& documents = "file") {
  TextInput input;
  for (const std::string& name : names) input.files.push_back((folder / name).string());
  input.documents = documents;
  return input;
}

}  // namespace

TEST_CASE("plain text is one document or divided at lines", "[documents]") {
  const TempDir folder;
  write_file(folder / "a.txt", "one\n\ntwo\r\nlines\r\n \t\r\n\n\nthree");
  write_file(folder / "b.txt", "  \n\n");
  write_file(folder / "c.txt", "");
  const std::string all = read_file(folder / "a.txt");
  CHECK(read(folder, files(folder, {"a.txt", "b.txt", "c.txt"})) == Found{{"a.txt", all}});
  CHECK(read(folder, files(folder, {"a.txt", "b.txt"}, "blank-lines")) ==
        Found{{"a.txt:1", "one\n"}, {"a.txt:3", "two\r\nlines\r\n"}, {"a.txt:8", "three"}});
  write_file(folder / "d.txt", "<end>\nx\n<end>\n<end> \ny\n<end>\n");
  CHECK(read(folder, files(folder, {"d.txt"}, "<end>")) == Found{{"d.txt:2", "x\n"}, {"d.txt:4", "<end> \ny\n"}});
  CHECK(has(message_of(ErrorKind::usage, [&] { read(folder, files(folder, {})); }), "no text"));
  CHECK(
      has(message_of(ErrorKind::usage, [&] { read(folder, files(folder, {"a.txt"}, "")); }), "expected file, blank-lines or"));
  CHECK(has(message_of(ErrorKind::data, [&] { read(folder, files(folder, {"none.txt"})); }), "none.txt"));
}

TEST_CASE("JSON Lines give a field of each object", "[documents]") {
  const TempDir folder;
  write_file(folder / "a.jsonl",
             "{\"text\": \"one\\n\\u00e9\", \"body\": \"x\"}\n\n{\"text\": \"\"}\r\n{\"body\": \"y\", \"text\": \" two\"}");
  CHECK(read(folder, files(folder, {"a.jsonl"})) == Found{{"a.jsonl:1", "one\n\xC3\xA9"}, {"a.jsonl:4", " two"}});
  TextInput input = files(folder, {"a.jsonl"});
  input.field = "body";
  CHECK(message_of(ErrorKind::data, [&] { read(folder, input); }) ==
        "'" + (folder / "a.jsonl").string() + "', line 3: the field 'body' is missing");
  const auto complaint = [&](const std::string& text) {
    write_file(folder / "b.jsonl", text);
    return message_of(ErrorKind::data, [&] { read(folder, files(folder, {"b.jsonl"})); });
  };
  CHECK(has(complaint("{\"text\": \"a\"}\n{\"text\": 5}\n"), "b.jsonl', line 2: the field 'text' is not a string"));
  CHECK(has(complaint("{\"text\": \"a\"}\n{\"text\": \"a\"\n"), "b.jsonl', line 2: not valid JSON"));
  CHECK(has(complaint("[1]"), "b.jsonl', line 1: expected a JSON object"));
  CHECK(has(complaint("{\"text\": \"\\ud800\"}"), "b.jsonl', line 1: not valid JSON"));
  CHECK(has(complaint("{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n"), "b.jsonl', line 2: not UTF-8"));
}

TEST_CASE("text that is not UTF-8 is refused with its line", "[documents]") {
  const TempDir folder;
  for (const std::string& bad :
       {std::string("\xC3"), std::string("\xFF"), std::string("\xED\xA0\x80"), std::string("\xC0\x80")}) {
    write_file(folder / "a.txt", "fine\nfine \xC3\xA9\nbad " + bad + "\nfine\n");
    for (const char* documents : {"file", "blank-lines"}) {
      CHECK(message_of(ErrorKind::data, [&] { read(folder, files(folder, {"a.txt"}, documents)); }) ==
            "'" + (folder / "a.txt").string() + "', line 3: not UTF-8");
    }
  }
}
