// Documents in batches, for work that several threads share; private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "data/text/documents.h"

namespace bitloom::data {

// Calls work(i) for i = 0 .. size - 1 on all threads; what one throws is thrown here (of several, the first to come).
template <typename Work>
void for_each_parallel(std::size_t size, Work&& work) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < size; ++i) {
    try {
      work(i);
    } catch (...) {
#pragma omp critical(bitloom_data_text)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

struct OwnedDocument {
  std::string id, text;
  std::uint64_t number = 0;  // number among the input's documents
};

// Calls take(batch) for all documents in order, some megabytes at a time.
template <typename Take>
void for_each_batch(const TextInput& input, Take&& take) {
  constexpr std::size_t batch_bytes = std::size_t{8} << 20U;
  std::vector<OwnedDocument> batch;
  std::size_t bytes = 0;
  std::uint64_t number = 0;
  for_each_document(input, [&](const Document& document) {
    batch.push_back({document.id, std::string(document.text), number++});
    bytes += document.text.size();
    if (bytes < batch_bytes) return;
    take(batch);
    batch.clear();
    bytes = 0;
  });
  if (!batch.empty()) take(batch);
}

}  // namespace bitloom::data
