#include "trainer/ops/products.h"

#include "trainer/ops/backend.h"

namespace sortie::trainer::ops {

void set_product_options(ExecutionContext& context, const ProductOptions& options) {
  SORTIE_CHECK(options.timed >= 1, "{} ways to time", options.timed);
  context.backend().set_product_options(options);
}

std::string product_choices(ExecutionContext& context) {
  return context.backend().product_choices();
}

Result<> use_product_choices(ExecutionContext& context, std::string_view text) {
  return context.backend().use_product_choices(context, text);
}

}  // namespace sortie::trainer::ops
