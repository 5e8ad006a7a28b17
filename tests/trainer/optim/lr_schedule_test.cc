#include <doctest/doctest.h>

#include "trainer/optim/lr_schedule.h"

using namespace sortie;

TEST_CASE("warm-up rises linearly to the peak, then each style falls to the minimum") {
  config::LearningRateSchedulerConfig config;
  config.learning_rate = 1.0;
  config.learning_rate_minimum = 0.1;
  config.learning_rate_warmup_steps = 10;
  config.learning_rate_decay_iters = 110;
  struct Row {
    const char* style;
    std::int64_t step;
    double rate;
  };
  for (const Row& row : {Row{"constant", 1, 0.1},
                         {"constant", 10, 1.0},
                         {"constant", 500, 1.0},
                         {"linear", 5, 0.5},
                         {"linear", 60, 0.55},
                         {"linear", 110, 0.1},
                         {"linear", 111, 0.1},
                         {"cosine", 10, 1.0},
                         {"cosine", 60, 0.55},
                         {"cosine", 35, 0.8681980515339464},
                         {"cosine", 110, 0.1}}) {
    CAPTURE(row.style);
    CAPTURE(row.step);
    config.learning_rate_decay_style = row.style;
    CHECK(trainer::learning_rate_at(config, 1000, row.step) ==
          doctest::Approx(row.rate).epsilon(1e-12));
  }
}

TEST_CASE("decay_iters 0 means the length of the training") {
  config::LearningRateSchedulerConfig config;
  config.learning_rate = 2.0;
  config.learning_rate_decay_style = "linear";
  CHECK(trainer::learning_rate_at(config, 100, 50) == doctest::Approx(1.0));
}
