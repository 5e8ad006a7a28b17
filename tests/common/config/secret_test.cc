// Secrets in a config: which variables are secret, and that no text from Sortie contains their
// values.
#include "common/config/secret.h"

#include <doctest/doctest.h>

#include "common/config/describe.h"
#include "common/config/load.h"

namespace sortie::config {
namespace {

TEST_CASE("names that look like secrets") {
  for (const char* name :
       {"HF_TOKEN", "hf_token", "TOKEN", "KEY", "AWS_SECRET_ACCESS_KEY", "API_KEY", "A_SECRET",
        "DB_PASSWORD", "PASSWORD_FILE", "PGPASSWORD", "MY_SECRET_THING", "X_CREDENTIALS"})
    CHECK_MESSAGE(looks_secret(name), name);
  for (const char* name :
       {"TOKENIZER", "KEYBOARD", "SECRETARY", "NCCL_DEBUG", "MONKEY", "A_TOKENS"})
    CHECK_MESSAGE(!looks_secret(name), name);
}

constexpr const char* kJob =
    "[runner]\nenv = { A = \"open\", HF_TOKEN = \"hunter2\" }\n"
    "secret_env = { PLAIN = \"hunter2\" }\n";

TEST_CASE("a config is written and shown without its secrets, and is a config again") {
  const auto job = load_job_text(kJob, "job.toml");
  REQUIRE(job);
  CHECK(job->job.runner.env.at("HF_TOKEN") == "hunter2");
  CHECK(job->job.runner.secret_env.at("PLAIN") == "hunter2");
  for (const std::string& text :
       {to_toml(job->job), show(*job), show(*job, {.all = true, .origin = true})}) {
    CHECK(text.find("hunter2") == text.npos);
    CHECK(text.find("env = { A = \"open\", HF_TOKEN = \"(secret)\" }") != text.npos);
    CHECK(text.find("secret_env = { PLAIN = \"(secret)\" }") != text.npos);
    const auto again = load_job_text(text, "again.toml");
    REQUIRE(again);
    CHECK(again->job.runner.secret_env.at("PLAIN") == "(secret)");
    CHECK(to_toml(again->job) == to_toml(job->job));
  }
}

TEST_CASE("no message about a config repeats what may be a secret") {
  for (const char* text : {
           "[runner]\nenv = \"hunter2\"",
           "[runner]\nsecret_env = \"hunter2\"",
           "[runner]\nsecret_env = [\"hunter2\"]",
           "[runner.env]\nHF_TOKEN = [\"hunter2\"]",
           "[runner.env]\nHF_TOKEN = { a = \"hunter2\" }",
           "[runner.secret_env]\nA.b = \"hunter2\"",
           "[runner.env]\nHF_TOKEN = hunter2",
           "[runner.env]\nHF_TOKEN = \"hunter2",
           "[runner.env]\nHF_TOKEN = 'hunter2\nB = 1",
           "[runner.env]\nHF_TOKEN = \"hunter2\" hunter2",
           "[runner.env]\nHF_TOKEN \"hunter2\"",
           "[runner.secret_env]\nA = \"hunter2\\u0000\"",
           "[runner.secret_env]\n\"A B\" = \"hunter2\"",
           "[runner.secret_env]\nRANK = \"hunter2\"",
           "[runner.secret_evn]\nA = \"hunter2\"",
           "[runner.secret_env]\nA = \"\\hunter2\"",
           "[runner.env]\nA = \"hunter2\"\n[runner.secret_env]\nA = \"hunter2\"",
       }) {
    CAPTURE(text);
    const auto loaded = load_job_text(text, "job.toml");
    REQUIRE_FALSE(loaded);
    CHECK_MESSAGE(loaded.error().message.find("hunter2") == std::string::npos,
                  loaded.error().message);
  }
  const auto number = load_job_text("[runner.env]\nA_KEY = 271828\n", "job.toml");
  REQUIRE_FALSE(number);
  CHECK(number.error().message.find("271828") == std::string::npos);
}

TEST_CASE("--set takes no secret, and no message about it repeats one") {
  for (const char* text : {
           "runner.env.HF_TOKEN=hunter2",
           "runner.secret_env.A=hunter2",
           "runner.env={HF_TOKEN=\"hunter2\"}",
           "runner.secret_env={A=\"hunter2\"}",
           "runner.env={HF_TOKEN=\"hunter2\"",
           "runner.secret_env=hunter2",
           "runner.evn.HF_TOKEN=hunter2",
           "runner.env.HF_TOKEN:hunter2",
           "HF_TOKEN=hunter2",
           "runner.secret_env.A=[\"hunter2\"]",
       }) {
    CAPTURE(text);
    const auto loaded = load_job_text("", "job.toml", {text});
    REQUIRE_FALSE(loaded);
    CHECK(loaded.error().message.starts_with("--set "));
    CHECK_MESSAGE(loaded.error().message.find("hunter2") == std::string::npos,
                  loaded.error().message);
  }
  const auto refused = load_job_text("", "job.toml", {"runner.env.HF_TOKEN=x"});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message ==
        "--set runner.env.HF_TOKEN: HF_TOKEN: a secret on the command line is in the process list "
        "of this machine; export it and write --set 'runner.secret_env.HF_TOKEN=(secret)', or put "
        "it into runner.secrets_file");
  const auto elsewhere =
      load_job_text(kJob, "job.toml", {"runner.secret_env.B=(secret)", "runner.env.A=changed"});
  REQUIRE(elsewhere);
  CHECK(elsewhere->job.runner.secret_env.at("B") == "(secret)");
  CHECK(elsewhere->job.runner.secret_env.at("PLAIN") == "hunter2");
  CHECK(elsewhere->job.runner.env.at("HF_TOKEN") == "hunter2");
  CHECK(elsewhere->job.runner.env.at("A") == "changed");
}

}  // namespace
}  // namespace sortie::config
