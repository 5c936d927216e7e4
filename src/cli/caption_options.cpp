#include "cli/caption_options.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/text_options.h"
#include "core/error.h"
#include "data/pairs/caption_filter.h"
#include "data/text/tokenizer_training.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// A file that is gone with this.
class ScratchFile {
 public:
  ScratchFile() {
    // A name that nobody else has or foresees.
    std::string name = fs::temp_directory_path() / "bitloom-captions-XXXXXX";
    const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor < 0) fail(ErrorKind::io, "{}: cannot be made: {}", name, std::strerror(errno));
    ::close(descriptor);
    path_ = name;
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::unique_ptr<data::Tokenizer> train_on_captions(const data::Pairs& train, std::size_t vocabulary) {
  const ScratchFile file;
  {
    std::ofstream out(file.path());
    for (std::size_t i = 0; i < train.size(); ++i) out << data::lower_cased(train[i].caption) << "\n";
    out.close();
    if (!out) fail(ErrorKind::io, "{}: captions cannot be written there", file.path().string());
  }
  constexpr std::size_t fewest = 264;  // bytes and a few merges
  for (std::size_t tokens = vocabulary;; tokens = std::max(fewest, tokens * 3 / 4)) {
    try {
      return data::train_tokenizer({{file.path().string()}, "file", "text"}, tokens);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      if (tokens <= fewest) return data::load_tokenizer("bytes");  // a handful of captions has no merges
    }
  }
}

}  // namespace

std::string note_on_cut_captions(const data::Tokenizer& tokenizer, std::size_t captions,
                                 const std::function<const std::string&(std::size_t i)>& caption, std::size_t tokens) {
  constexpr std::size_t most = 10000;  // some seconds
  const std::size_t looked_at = std::min(captions, most);
  std::size_t cut = 0;
  for (std::size_t i = 0; i < looked_at; ++i) {
    const std::string& text = caption(i * captions / looked_at);
    cut += data::encode(tokenizer, data::lower_cased(text)).size() > tokens ? 1 : 0;
  }
  if (cut == 0) return "";
  return fmt::format("{} of {} caption{}{} {} more than {} tokens; the net sees {}", cut, looked_at, looked_at == 1 ? "" : "s",
                     looked_at < captions ? fmt::format(", of {},", captions) : "", cut == 1 ? "has" : "have", tokens,
                     cut == 1 ? "its beginning" : "their beginnings");
}

void CaptionSettings::declare(Options& options) {
  options.text("tokenizer", tokenizer, "SPEC",
               fmt::format("Tokenizer of captions: auto (byte pairs of the training captions); {}", tokenizer_spec_help));
  options.count("vocabulary", vocabulary, 264, 1000000,
                "Number of tokens that --tokenizer auto makes, or as many as there are");
  static const std::vector<Options::Need> needs{{"vocabulary", "tokenizer", {"auto"}}};
  options.needs(needs);
}

std::unique_ptr<data::Tokenizer> CaptionSettings::make(Session& session, const data::Pairs& train) const {
  std::string text;
  session.on_root([&] {
    const auto made = tokenizer == "auto" ? train_on_captions(train, vocabulary) : data::load_tokenizer(tokenizer);
    text = made->serialize();
  });
  return data::parse_tokenizer(session.comm.broadcast_text(text), "the tokenizer of captions");
}

}  // namespace bitloom::cli
