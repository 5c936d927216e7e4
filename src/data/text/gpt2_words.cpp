#include "data/text/gpt2_words.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "core/error.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

// Where the original has \s: PCRE2's would take U+180E along, which Unicode no longer counts as white space.
constexpr char pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+)"
                           R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct Gpt2Words::Code {
  Code() {
    int error = 0;
    PCRE2_SIZE place = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &place,
                         nullptr);
    if (code == nullptr) fail(ErrorKind::internal, "PCRE2 rejects GPT-2's pattern at {} (error {})", place, error);
    // Where there is no compiler to machine code, the interpreter gives the same words.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }

  pcre2_code* code = nullptr;
};

Gpt2Words::Gpt2Words() : code_(std::make_unique<Code>()) {}

Gpt2Words::~Gpt2Words() = default;

void Gpt2Words::cut(std::string_view text, const std::function<void(std::string_view word)>& take) const {
  if (!is_utf8(text)) fail(ErrorKind::data, "a text for a gpt2 tokenizer is not UTF-8");
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  if (match == nullptr) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t begin = 0; begin < text.size();) {
    const int result = pcre2_match(code_->code, subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    // Every character is in some alternative, so that the matches leave no gap.
    if (result < 1 || range[0] != begin || range[1] <= begin) {
      fail(ErrorKind::internal, "PCRE2 cannot cut a text at byte {} (result {})", begin, result);
    }
    take(text.substr(begin, range[1] - begin));
    begin = range[1];
  }
}

}  // namespace bitloom::data
