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

TEST_CASE("warmup-stable-decay holds the peak and falls in the last steps, by four shapes") {
  config::LearningRateSchedulerConfig config;
  config.learning_rate = 1.0;
  config.learning_rate_minimum = 0.2;
  config.learning_rate_warmup_steps = 10;
  config.learning_rate_decay_style = "warmup-stable-decay";
  config.wsd_decay_steps = 40;
  struct Row {
    const char* style;
    std::int64_t step;
    double rate;
  };
  for (const Row& row : {Row{"linear", 5, 0.5},
                         {"linear", 11, 1.0},
                         {"linear", 60, 1.0},
                         {"linear", 70, 0.8},
                         {"linear", 99, 0.22},
                         {"linear", 100, 0.2},
                         {"linear", 200, 0.2},
                         {"cosine", 60, 1.0},
                         {"cosine", 80, 0.6},
                         {"minus-sqrt", 70, 0.6},
                         {"exponential", 80, 0.2 + 0.8 * 0.41421356237309515},
                         {"exponential", 100, 0.2}}) {
    CAPTURE(row.style);
    CAPTURE(row.step);
    config.wsd_decay_style = row.style;
    CHECK(trainer::learning_rate_at(config, 100, row.step) ==
          doctest::Approx(row.rate).epsilon(1e-12));
  }
  config.wsd_decay_steps = 0;  // 0: a tenth of all steps
  config.wsd_decay_style = "linear";
  CHECK(trainer::learning_rate_at(config, 100, 90) == 1.0);
  CHECK(trainer::learning_rate_at(config, 100, 95) == doctest::Approx(0.6));
}
