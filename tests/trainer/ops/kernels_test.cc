// Tests of the row kernels: which instruction set is chosen, and the exponential on every set of
// this CPU.
#include "trainer/ops/kernels/table.h"

#include <algorithm>
#include <cstdlib>

#include "tests/trainer/ops/op_test.h"

namespace sortie::trainer {

// The suite runs a second time with ONEDNN_MAX_CPU_ISA=AVX2 (tests/CMakeLists.txt).
TEST_CASE("ONEDNN_MAX_CPU_ISA limits the kernels of Sortie's own as it limits oneDNN") {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  ops::Isa expected = ops::best_isa();
  if (limit != nullptr) {
    REQUIRE(std::string(limit) == "AVX2");
    expected = std::min(expected, ops::Isa::avx2);
    CHECK_FALSE(cpu_facts().isa.starts_with("avx512"));
  }
  ExecutionContext context(1);
  CHECK(ops::isa_of(context) == expected);
}

TEST_CASE("the exponential is within 2 ulp, 0 far below, and keeps NaN") {
  for (const ops::Isa isa : {ops::Isa::baseline, ops::Isa::avx2, ops::Isa::avx512}) {
    if (isa > ops::best_isa()) continue;
    CAPTURE(std::string(ops::isa_name(isa)));
    std::vector<float> x = {0.0f};  // the maximum
    for (float value = -87.25f; value < 0.0f; value += 0.00317f) x.push_back(value);
    const auto count = static_cast<std::int64_t>(x.size());
    std::vector<float> e(x.size());
    float max = 1.0f;
    const auto& rows = ops::kernels_of(isa).f32;
    const float sum = rows.exp_row(x.data(), e.data(), count, &max);
    CHECK(max == 0.0f);
    double worst = 0.0, expected_sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(static_cast<double>(x[i]));
      expected_sum += expected;
      const auto nearest = static_cast<float>(expected);
      const double ulp =
          static_cast<double>(std::nextafter(nearest, 2.0f)) - static_cast<double>(nearest);
      worst = std::max(worst, std::abs(static_cast<double>(e[i]) - expected) / ulp);
    }
    CHECK(worst <= 2.0);
    CHECK(static_cast<double>(sum) == doctest::Approx(expected_sum).epsilon(1e-5));

    x = {5.0f, -90.0f, -1e30f, -std::numeric_limits<float>::infinity(), static_cast<float>(kNaN)};
    CHECK(std::isnan(rows.exp_row(x.data(), e.data(), 5, &max)));
    CHECK(max == 5.0f);
    CHECK(e[0] == 1.0f);
    CHECK(e[1] == 0.0f);
    CHECK(e[2] == 0.0f);
    CHECK(e[3] == 0.0f);
    CHECK(std::isnan(e[4]));
  }
}

}  // namespace sortie::trainer
