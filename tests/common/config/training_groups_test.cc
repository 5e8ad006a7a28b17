#include "common/config/training_groups.h"

#include <doctest/doctest.h>

using namespace sortie::config;

TEST_CASE("a group takes the schedule of the job, but for what its line says") {
  LearningRateSchedulerConfig schedule;
  schedule.learning_rate = 1e-3;
  schedule.learning_rate_warmup_steps = 7;
  const auto group = parse_training_group(
      "head include=head.*,embedding.* exclude=*.bias weight_decay=0.5 learning_rate=2e-4 "
      "learning_rate_decay_style=constant",
      schedule);
  REQUIRE(group);
  CHECK(group->name == "head");
  CHECK(group->include == std::vector<std::string>{"head.*", "embedding.*"});
  CHECK(group->exclude == std::vector<std::string>{"*.bias"});
  CHECK(group->weight_decay == 0.5);
  CHECK(group->schedule.learning_rate == 2e-4);
  CHECK(group->schedule.learning_rate_decay_style == "constant");
  CHECK(group->schedule.learning_rate_warmup_steps == 7);
  CHECK_FALSE(parse_training_group("norms include=*norm*", schedule)->weight_decay);
}

TEST_CASE("what is wrong with a group's line, and what to do") {
  struct Row {
    const char* line;
    const char* error;
  };
  for (const Row& row : {
           Row{"", "a group starts with its name; write \"NAME include=PATTERN\""},
           Row{"include=a", "a group starts with its name; write \"NAME include=PATTERN\""},
           Row{"a", "group a includes nothing; write include=PATTERN"},
           Row{"a include=b weight_decay", "\"weight_decay\" has no '='; write KEY=VALUE"},
           Row{"a include=b rate=1",
               "\"rate\" is no key of a group; use include, exclude, weight_decay or a key of "
               "[learning_rate_scheduler]"},
           Row{"a include=b weight_decay=11", "weight_decay: 11.0 is out of range; use 0 to 10"},
           Row{"a include=b$",
               "\"b$\" is no pattern of a parameter's name; use letters, digits, . _ - and * ? "
               "[...]"},
       }) {
    CAPTURE(row.line);
    CHECK(check_training_group(row.line) == row.error);
  }
}

TEST_CASE("patterns match whole names, across dots") {
  CHECK(name_matches("layers.*.bias", "layers.11.attention.qkv.bias"));
  CHECK(name_matches("layers.[0-3].*", "layers.2.mlp.up.weight"));
  CHECK_FALSE(name_matches("layers.[0-3].*", "layers.12.mlp.up.weight"));
  CHECK_FALSE(name_matches("mlp.*", "layers.2.mlp.up.weight"));
  CHECK(any_matches({"x", "head.*"}, "head.weight"));
  CHECK_FALSE(any_matches({}, "head.weight"));
}
