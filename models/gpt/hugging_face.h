// GPT-2 as Hugging Face's transformers keep it: a folder with config.json (GPT2Config) and model.safetensors (GPT2LMHeadModel).
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/gpt/gpt.h"

namespace bitloom::models {

// Configuration in FOLDER/config.json; what it leaves out is as in transformers' GPT2Config. The vocabulary gets rows of
// padding up to a multiple of `vocabulary_multiple`. Of three rates of dropout the largest is taken: a Gpt has one.
// Throws Error(data) that names the file, the key, its value and what was expected for what a Gpt cannot be: another
// model_type, an activation function that is not here, another epsilon of layer norms, scaling or cross-attention, tables of
// tokens that are not tied.
GptConfig read_hugging_face_config(const std::filesystem::path& folder, std::size_t vocabulary_multiple = 128);

// Writes the parameters in FOLDER/model.safetensors, of type f32, f16 or bf16, to those of a net, which have their memory.
// Names may begin with "transformer."; masks that old versions kept (attn.bias, attn.masked_bias) are left out; lm_head.weight,
// where there is one, has to be equal to the table of tokens. Rows of padding become 0. Throws Error(data) that names the file,
// the tensor, its shape or type, and what was expected: for one that is missing, of another size, or has no place in the net.
void load_hugging_face(nn::Engine& engine, const std::filesystem::path& folder, Gpt& net);

// Writes both files, in f32 and without the padding, for GPT2LMHeadModel.from_pretrained(FOLDER), which has to be there.
// end_of_text: the token that generate() begins and ends with. Throws Error(usage) for an activation function that
// transformers do not have, and Error(io).
void save_hugging_face(nn::Engine& engine, Gpt& net, const std::filesystem::path& folder, std::int32_t end_of_text);

}  // namespace bitloom::models
