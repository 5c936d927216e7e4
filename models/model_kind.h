// Model files of float models say in their metadata what they are.
#pragma once

#include <map>
#include <string>

namespace bitloom::models {

inline constexpr const char* kind_key = "bitloom.kind";
inline constexpr const char* config_key = "bitloom.config";  // the net, as JSON
inline constexpr const char* gpt_kind = "gpt";
inline constexpr const char* cnn_kind = "cnn";
inline constexpr const char* dalle_kind = "dalle";
inline constexpr const char* clip_kind = "clip";
inline constexpr const char* dvae_kind = "dvae";
inline constexpr const char* image_tokens_kind = "image-tokens";  // no model, but what one made

// Throws Error(data) that names `name` unless a file with this metadata is a model of this kind.
void require_kind(const std::map<std::string, std::string>& metadata, const char* kind, const std::string& name);

}  // namespace bitloom::models
