// The chosen algorithm of each product, and its text format.
#pragma once

#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/ops/cuda/products.h"

namespace sortie::trainer::ops::cuda {

/// What the choice of an algorithm depends on.
struct ProductKey {
  Product product;
  int a_alignment = 16, b_alignment = 16, c_alignment = 16;  // of addresses; bytes, up to 16
  bool tf32 = false;

  auto operator<=>(const ProductKey&) const = default;
};

/// nullopt: Products::run_or() uses its alternative to the product.
using ProductChoice = std::optional<cublasLtMatmulAlgo_t>;
using ProductChoices = std::map<ProductKey, ProductChoice>;

/// `origin` is one line that identifies the library and GPU of the choices.
std::string write_choices(std::string_view origin, const ProductChoices& choices);
/// ErrorCode::unsupported if the text has another origin, ErrorCode::checkpoint if it is malformed.
Result<ProductChoices> read_choices(std::string_view origin, std::string_view text);

}  // namespace sortie::trainer::ops::cuda
