// Which algorithm each product is computed with, as text.
#pragma once

#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/ops/cuda/products.h"

namespace sortie::trainer::ops::cuda {

/// What an algorithm is chosen by.
struct ProductKey {
  Product product;
  int a_alignment = 16, b_alignment = 16, c_alignment = 16;  // of addresses; bytes, up to 16
  bool tf32 = false;

  auto operator<=>(const ProductKey&) const = default;
};

/// Empty: another way than one product is faster (Products::run_or()).
using ProductChoice = std::optional<cublasLtMatmulAlgo_t>;
using ProductChoices = std::map<ProductKey, ProductChoice>;

/// `origin`, one line, says which library and GPU the choices are for.
std::string write_choices(std::string_view origin, const ProductChoices& choices);
/// ErrorCode::unsupported: of another origin; ErrorCode::checkpoint: not such a text.
Result<ProductChoices> read_choices(std::string_view origin, std::string_view text);

}  // namespace sortie::trainer::ops::cuda
