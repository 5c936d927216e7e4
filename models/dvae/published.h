// Discrete VAEs as openai/DALL-E publishes its own (its encoder.py and decoder.py): an encoder and a decoder, modules of their
// own with the same names in both, blocks.input.w and blocks.group_1.block_1.res_path.conv_1.b.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "models/dvae/model_file.h"

namespace bitloom::models {

// Names of the two files in a folder.
inline constexpr const char* encoder_file = "encoder.safetensors";
inline constexpr const char* decoder_file = "decoder.safetensors";

struct PublishedDvae {
  TensorFile encoder, decoder;
};
// In f32; the metadata of both describe the net.
PublishedDvae to_published(nn::Engine& engine, Dvae& net, const DvaeDescription& description);

// The tensors of both halves in one: those of the encoder behind "encoder.", those of the decoder behind "decoder.".
// paths: a file with all of them, whose names begin so; a file of the encoder's and one of the decoder's, which may begin so;
// or a folder with encoder.safetensors and decoder.safetensors. Throws Error(data) that names the file.
TensorFile read_published(std::span<const std::filesystem::path> paths);

// The net that such tensors are of: as their metadata describe it or, without these, with the sizes that shapes tell. What none
// tells is the side of images, in pixels: `side`, unless it is 0, or 256, the published net's. Throws Error(data) that names
// `name` and the tensor, its shape and what was expected.
DvaeDescription description_of_published(const TensorFile& file, std::size_t side, const std::string& name);
// Writes them, of type f32, f16 or bf16, to a net of that description that has memory for them. Throws Error(data) that names
// `name` and the tensor that is missing, of another shape or not of this net.
void load_published(nn::Engine& engine, const TensorFile& file, Dvae& net, const std::string& name);

}  // namespace bitloom::models
