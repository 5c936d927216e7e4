// Catch2 of either major version: Debian 12 has 2.13, newer distributions have 3.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
namespace Catch {
using Detail::Approx;  // where version 3 has it
}  // namespace Catch
#endif
