// The table of all commands.
#include <algorithm>

#include "cli/command.h"

namespace bitloom::cli {
namespace {

constexpr Command table_of_commands[] = {
    {"train", "binary", "train a binary net, layer by layer", &train_binary},
    {"train", "clip", "train a model that tells which caption belongs to which image", &train_clip},
    {"train", "cnn", "train a convolutional net of floating-point numbers on images", &train_cnn},
    {"train", "dalle", "train a transformer that draws images for captions", &train_dalle},
    {"train", "dvae", "train a discrete VAE, which makes tokens of images", &train_dvae},
    {"train", "gpt", "train a GPT on text", &train_gpt},
    {"eval", "", "measure a model on images or text", &eval},
    {"sample", "", "text from a trained GPT, images from a text-to-image transformer", &sample},
    {"predict", "", "classify images", &predict},
    {"encode", "", "tokens of images, by a trained discrete VAE", &encode},
    {"reconstruct", "", "images beside what their tokens hold", &reconstruct},
    {"compare", "", "how far two sets of images are apart, in features of a trained net", &compare},
    {"inspect", "", "show the layers, sizes and operations of a model or net", &inspect},
    {"report", "", "write a run's HTML report", &report},
    {"verify", "", "check that models, checkpoints and token files are undamaged", &verify},
    {"export", "", "write a model in the layout of other programs", &export_model},
    {"import", "clip", "make a model of a contrastive model's weights as PyTorch keeps them", &import_clip},
    {"import", "cnn", "make a model of a convolutional net's weights as PyTorch keeps them", &import_cnn},
    {"import", "dalle", "make a model of a text-to-image transformer's weights as PyTorch keeps them", &import_dalle},
    {"import", "dvae", "make a model of a discrete VAE's weights as openai/DALL-E keeps them", &import_dvae},
    {"import", "gpt", "make a model of GPT-2's weights as other programs keep them", &import_gpt},
    {"selftest", "", "check that all layouts of this run's processes come to the same nets", &selftest},
    {"info", "", "show what this machine offers and what Bitloom makes of it", &info},
    {"launch", "", "keep a training run going on machines that may vanish", &launch},
    {"plan", "", "what a training run needs on given hosts and links, before any is rented", &plan},
    {"plan", "cnn", "the memory and operations that training a convolutional net takes", &plan_cnn},
    {"plan", "dalle", "the memory and operations that training a text-to-image transformer takes", &plan_dalle},
    {"plan", "gpt", "the memory and operations that training a GPT takes", &plan_gpt},
    {"plan", "shape", "what training a model of the papers takes on a cluster", &plan_shape},
    {"simulate", "", "updates of very many workers in one process, and what they take on a cluster", &simulate},
    {"fewbit", "", "the few-bit table of an activation function, and its picture", &fewbit},
    {"data", "synth", "write the built-in data set as CIFAR binary files", &data_synth},
    {"data", "info", "show what a data set holds", &data_info},
    {"data", "sheet", "draw a contact sheet of a data set", &data_sheet},
    {"data", "pairs", "show what a set of images and captions holds", &data_pairs},
    {"data", "synth-pairs", "make pictures of coloured shapes and their captions", &data_synth_pairs},
    {"data", "text", "turn text into tokens for training", &data_text},
    {"data", "clean", "drop short documents and near copies, and find test sets in text", &data_clean},
    {"tokenizer", "train", "make a tokenizer from text", &tokenizer_train},
    {"tokenizer", "info", "show a tokenizer and how it divides a text", &tokenizer_info},
};

}  // namespace

std::span<const Command> commands() { return table_of_commands; }

std::string full_name(const Command& command) {
  return *command.kind == '\0' ? command.verb : std::string(command.verb) + " " + command.kind;
}

std::string summary_of(const std::string& name) {
  const auto found = std::ranges::find(table_of_commands, name, &full_name);
  return found == std::end(table_of_commands) ? "" : found->summary;
}

}  // namespace bitloom::cli
