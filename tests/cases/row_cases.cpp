#include <fmt/format.h>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

struct Lookup {
  std::size_t table_rows, rows, columns;
  Kind table = Kind::parameters;
  bool accumulate = false;
  bool is_large = false;
  nn::VocabularySlice slice = {};
};

// gather and, as its gradient, scatter_add. There are repeated ids as soon as there are more rows than the table has.
OpCase lookup_case(const Lookup& p) {
  const nn::Shape out = {p.rows, p.columns};
  const nn::Shape table = {p.table_rows, p.columns};
  OpCase c;
  c.ops = {"gather", "scatter_add"};
  c.name = fmt::format("{} rows of {}{}{}", p.rows, to_text(table), p.table == Kind::values ? ", values" : "",
                       p.accumulate ? ", accumulated" : "");
  const std::size_t ids = p.slice.all == 0 ? p.table_rows : p.slice.all;
  if (p.slice.all != 0) c.name += fmt::format(", {}, ... of {} ids", p.slice.first, ids);
  c.inputs = {{"table", p.table, table, normal_numbers(table.size(), 1)},
              {"ids", Kind::i32, {p.rows}, whole_numbers(p.rows, 2, 0, static_cast<std::int32_t>(ids) - 1)}};
  c.outputs = {p.accumulate ? added_to("y", out, 3, Kind::values) : overwritten("y", out)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::gather(engine, t["table"], t["ids"], t["y"], p.accumulate, p.slice); };
  c.upstream = {values("dy", out, 4)};
  c.gradients = {added_to("dtable", table, 5)};
  c.backward = [=](nn::Engine& engine, Tensors& t) { nn::scatter_add(engine, t["dy"], t["ids"], t["dtable"], p.slice); };
  c.is_large = p.is_large;
  return c;
}

}  // namespace

std::vector<OpCase> row_cases() {
  std::vector<OpCase> cases;
  for (const Kind table : {Kind::parameters, Kind::values}) {
    for (const bool accumulate : {false, true}) {
      for (const std::size_t columns : odd_sizes) {
        cases.push_back(lookup_case({7, 31, columns, table, accumulate}));
        cases.push_back(lookup_case({127, 3, columns, table, accumulate}));
      }
      cases.push_back(lookup_case({1, 33, 5, table, accumulate}));  // every row is the same one
      cases.push_back(lookup_case({3, 1, 5, table, accumulate}));
      cases.push_back(lookup_case({3, 0, 5, table, accumulate}));
      cases.push_back(lookup_case({3, 4, 0, table, accumulate}));
      for (const std::size_t columns : {1U, 8U, 33U}) {
        cases.push_back(lookup_case({7, 31, columns, table, accumulate, false, {0, 19}}));
        cases.push_back(lookup_case({7, 31, columns, table, accumulate, false, {9, 19}}));
        cases.push_back(lookup_case({7, 31, columns, table, accumulate, false, {14, 19}}));  // two rows are padding
      }
      cases.push_back(lookup_case({0, 5, 3, table, accumulate, false, {4, 4}}));
    }
  }
  cases.push_back(lookup_case({.table_rows = 501, .rows = 2003, .columns = 65, .is_large = true}));
  // Rows that vectors divide, in numbers that are more than one, two and three digits of a sort by bytes.
  cases.push_back(lookup_case({.table_rows = 255, .rows = 300, .columns = 64, .is_large = true}));
  cases.push_back(lookup_case({.table_rows = 256, .rows = 300, .columns = 264, .is_large = true}));
  cases.push_back(lookup_case({.table_rows = 65536, .rows = 65, .columns = 1, .is_large = true}));
  cases.push_back(lookup_case({.table_rows = 300, .rows = 2003, .columns = 64, .is_large = true, .slice = {250, 700}}));
  // Most ids are the same: long runs.
  cases.push_back(lookup_case({.table_rows = 2, .rows = 1500, .columns = 8, .is_large = true}));
  return cases;
}

OpCase random_row_case(Draw& draw) {
  Lookup p{.table_rows = draw.size(1, 2000),
           .rows = draw.size(1, 500),
           .columns = draw.size(1, 200),
           .table = draw.any_of({Kind::parameters, Kind::values}),
           .accumulate = draw.coin()};
  if (draw.coin()) {
    p.slice.first = draw.size(1, 1000) - 1;
    p.slice.all = p.slice.first + draw.size(1, 3000);
  }
  return lookup_case(p);
}

}  // namespace bitloom::test
