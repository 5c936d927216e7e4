#include <string>
#include <vector>

#include "core/progress.h"
#include "core/suggest.h"
#include "core/text.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::test::message_of;

TEST_CASE("trim and split", "[text]") {
  CHECK(trim(" \t a b\r\n") == "a b");
  CHECK(trim(" \n") == "");
  CHECK(split("256, 512,1024", ',') == std::vector<std::string>{"256", "512", "1024"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(split(",a,", ',') == std::vector<std::string>{"", "a", ""});
}

TEST_CASE("lower case is that of ASCII letters", "[text]") {
  CHECK(lower_case("Photo 7.JPEG@[`{") == "photo 7.jpeg@[`{");
  CHECK(lower_case("\u00c9") == "\u00c9");
  CHECK(lower_case("") == "");
}

TEST_CASE("a byte order mark goes, once and from the start alone", "[text]") {
  const std::string mark = "\xef\xbb\xbf";
  CHECK(without_byte_order_mark(mark + "a,b") == "a,b");
  CHECK(without_byte_order_mark("a,b") == "a,b");
  CHECK(without_byte_order_mark(mark) == "");
  CHECK(without_byte_order_mark("") == "");
  CHECK(without_byte_order_mark("\xef\xbb") == "\xef\xbb");
  CHECK(without_byte_order_mark(mark + mark) == mark);
  CHECK(without_byte_order_mark("a" + mark) == "a" + mark);
}

TEST_CASE("the depth of a JSON text is that of its brackets outside of strings", "[text]") {
  CHECK(json_depth("") == 0);
  CHECK(json_depth("7") == 0);
  CHECK(json_depth("[] {} []") == 1);
  CHECK(json_depth(R"({"a": [1, {"b": []}], "c": {}})") == 4);
  CHECK(json_depth(R"(["[[[", "\"[[", "]", "\\", [2]])") == 2);
  CHECK(json_depth(R"("[[)") == 0);
  CHECK(json_depth("]]}[") == 1);
  CHECK(json_depth(std::string(100000, '[')) == 100000);
  CHECK(json_depth(std::string(100000, '{') + std::string(100000, '}')) == 100000);
}

TEST_CASE("a list contains a name as a whole", "[text]") {
  const std::vector<std::string> names{"layer1", "layer2"};
  CHECK(contains(names, "layer2"));
  CHECK_FALSE(contains(names, "layer"));
  CHECK_FALSE(contains(names, "layer22"));
  CHECK_FALSE(contains({}, ""));
}

TEST_CASE("UTF-8 is told from other bytes", "[text]") {
  for (const char* good : {"", "abc", "\u00e9", "\u20ac", "\U0001F600", "\u07ff\u0800\uffff"}) CHECK(is_utf8(good));
  // A Latin-1 letter, a lone continuation, a cut-off one, too long a form, a surrogate, beyond the last code point.
  for (const char* bad :
       {"\xe9", "a\x80", "\xe2\x82", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    CHECK_FALSE(is_utf8(bad));
  }
}

TEST_CASE("a text that goes on is shown up to its last whole character", "[text]") {
  CHECK(whole_characters("") == 0);
  CHECK(whole_characters("abc") == 3);
  const std::string smile = "ab\U0001F600";
  CHECK(whole_characters(smile) == 6);
  for (std::size_t size = 3; size < 6; ++size) CHECK(whole_characters(smile.substr(0, size)) == 2);
  CHECK(whole_characters("a\u00e9") == 3);
  // Stands for bytes of a character that is not whole.
  CHECK(whole_characters("a\ufffd\ufffd") == 1);
  CHECK(whole_characters("a\ufffdb") == 5);
  CHECK(whole_characters("\x80\x80\x80\x80\x80") == 5);
}

// Names in data sets and settings reached the terminal as they were: they could clear it, or set its title.
TEST_CASE("control characters and bytes that are no UTF-8 are written out", "[text]") {
  CHECK(printable("plain, caf\u00e9 \U0001F600\n\tindented") == "plain, caf\u00e9 \U0001F600\n\tindented");
  CHECK(printable("\x1b[2J\x07\r\b\x7f") == "\\x1b[2J\\x07\\x0d\\x08\\x7f");
  CHECK(printable("\u009b31m\u0085\u00a0") == "\\xc2\\x9b31m\\xc2\\x85\u00a0");
  CHECK(printable("caf\xe9 \xe2\x82") == "caf\\xe9 \\xe2\\x82");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("") == "");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const char c : printable(all)) CHECK((c == '\n' || c == '\t' || (c >= ' ' && c < '\x7f')));
}

TEST_CASE("base64 is that of RFC 4648", "[text]") {
  CHECK(base64("").empty());
  CHECK(base64("f") == "Zg==");
  CHECK(base64("fo") == "Zm8=");
  CHECK(base64("foobar") == "Zm9vYmFy");
  CHECK(base64("\xFB\xFF\xFE") == "+//+");
}

TEST_CASE("numbers must fill the whole string", "[text]") {
  CHECK(parse_int("-42") == -42);
  CHECK(parse_int("9223372036854775807") == 9223372036854775807);
  for (const char* bad : {"", "x", "1x", " 1", "1 ", "+1", "1.0", "9223372036854775808", "0x10"}) CHECK_FALSE(parse_int(bad));
  CHECK(parse_double("1e-3") == 1e-3);
  CHECK(parse_double("-2") == -2.0);
  for (const char* bad : {"", "nan", "inf", "1e999", "0.5 ", "1,5", "0.5x"}) CHECK_FALSE(parse_double(bad));
}

TEST_CASE("misspelt names are recognised", "[suggest]") {
  const std::vector<std::string> known{"cifar-small", "cifar-base", "tiny", "ref", "avx2", "avx512"};
  CHECK(closest("cifar-smal", known) == "cifar-small");
  CHECK(closest("CIFAR-BASE", known) == "cifar-base");
  CHECK(closest("tniy", known) == "tiny");
  CHECK(closest("avx51", known) == "avx512");
  CHECK(closest("resnet", known) == "");
  CHECK(closest("", known) == "");
  // Two substitutions are within the limit, but nothing of the word would remain.
  CHECK(closest("ab", std::vector<std::string>{"xy"}) == "");
  CHECK(closest("tiny", std::vector<std::string>{}) == "");
  CHECK(did_you_mean("tinny", known) == "; did you mean 'tiny'?");
  CHECK(did_you_mean("resnet", std::vector<std::string>{"a", "b"}) == "; known: a, b");
  CHECK(did_you_mean("resnet", std::vector<std::string>{}) == "");
}

// The table of distances took a gigabyte, and many seconds, for a wrong file that was taken for a word.
TEST_CASE("a word that nobody can have meant is compared with none", "[suggest]") {
  const std::vector<std::string> names{std::string(300, 'a'), std::string(199, 'b')};
  CHECK(closest(std::string(200, 'b'), names) == names[1]);
  CHECK(closest(std::string(201, 'b'), names) == "");
  CHECK(closest(std::string(299, 'a'), names) == "");
  const std::string huge(10'000'000, 'a');
  CHECK(closest(huge, std::vector<std::string>{"tiny", "avx512"}) == "");
  CHECK(did_you_mean(huge, std::vector<std::string>{"tiny", "avx512"}) == "; known: tiny, avx512");
  CHECK(did_you_mean(huge, std::vector<std::string>{}) == "");
}

TEST_CASE("a row of a table is found by its name", "[suggest]") {
  struct Row {
    const char* name;
    int value;
  };
  constexpr Row rows[] = {{"one", 1}, {"three", 3}};
  CHECK(find_named(rows, "three", "--count").value == 3);
  CHECK(message_of(ErrorKind::usage, [&] { find_named(rows, "there", "--count"); }) ==
        "--count: 'there'; did you mean 'three'?");
  CHECK(message_of(ErrorKind::usage, [&] { find_named(rows, "", "--count"); }) == "--count: ''; known: one, three");
}

TEST_CASE("durations", "[progress]") {
  CHECK(format_duration(0.0) == "0 ms");
  CHECK(format_duration(0.85) == "850 ms");
  CHECK(format_duration(0.9996) == "1.0 s");
  CHECK(format_duration(4.2) == "4.2 s");
  CHECK(format_duration(9.96) == "10 s");
  CHECK(format_duration(59.7) == "1 min 00 s");
  CHECK(format_duration(185) == "3 min 05 s");
  CHECK(format_duration(3599.6) == "1 h 00 min");
  CHECK(format_duration(2 * 3600 + 13 * 60) == "2 h 13 min");
  CHECK(format_duration(86400 - 10) == "1 d 00 h");
  CHECK(format_duration(76 * 3600) == "3 d 04 h");
  CHECK(format_duration(1e300) == "for ever");
  CHECK(format_duration(-1) == "unknown");
}

TEST_CASE("bytes and counts", "[progress]") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes((1 << 20) - 1) == "1.0 MiB");
  CHECK(format_bytes(std::uint64_t{3} << 30) == "3.0 GiB");
  CHECK(format_bytes(~std::uint64_t{0}) == "16.0 EiB");
  CHECK(format_count(9999) == "9999");
  CHECK(format_count(12345) == "12.3 k");
  CHECK(format_count(999600) == "1.00 M");
  CHECK(format_count(1234567) == "1.23 M");
  CHECK(format_count(456000000000) == "456 G");
  CHECK(format_count(~std::uint64_t{0}) == "18.4 E");
}
