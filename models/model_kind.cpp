#include "models/model_kind.h"

#include "core/error.h"

namespace bitloom::models {

void require_kind(const std::map<std::string, std::string>& metadata, const char* kind, const std::string& name) {
  const auto found = metadata.find(kind_key);
  if (found != metadata.end() && found->second == kind) return;
  fail(ErrorKind::data, "{}: not a model of kind '{}'{}", name, kind,
       found == metadata.end() ? std::string() : fmt::format(" but of kind '{}'", found->second));
}

}  // namespace bitloom::models
