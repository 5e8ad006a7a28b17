// CPU lists, and the CPUs that this process may use.
#include "common/cpu/cpu_list.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sortie::cpu {
namespace {

TEST_CASE("a list of CPUs as the kernel writes it, and back") {
  struct Row {
    const char* text;
    CpuList cpus;
    const char* again;
  };
  for (const Row& row : {Row{"0-3,8\n", {0, 1, 2, 3, 8}, "0-3,8"}, Row{"", {}, ""},
                         Row{"\n", {}, ""}, Row{"7", {7}, "7"}, Row{"4,0-1,1", {0, 1, 4}, "0-1,4"},
                         Row{"0,2,4-5", {0, 2, 4, 5}, "0,2,4-5"}}) {
    CAPTURE(row.text);
    const auto cpus = parse_cpu_list(row.text);
    REQUIRE(cpus);
    CHECK(*cpus == row.cpus);
    CHECK(cpu_list_text(*cpus) == row.again);
  }
}

TEST_CASE("what is no list of CPUs is an error, and no memory is spent on it") {
  for (const char* text : {"a", "1,", ",1", "3-1", "1-", "-1", "0-99999999", "1 2", "0x1"}) {
    CAPTURE(text);
    const auto cpus = parse_cpu_list(text);
    REQUIRE_FALSE(cpus);
    CHECK(cpus.error().message.find("is no list of CPUs like 0-3,8") != std::string::npos);
  }
}

TEST_CASE("a child is confined to one of this process's CPUs, and not to one that is not there") {
  const CpuList mine = allowed_cpus();
  REQUIRE_FALSE(mine.empty());
  const pid_t child = ::fork();
  if (child == 0) {
    confine_to({mine.back()});
    const bool confined = allowed_cpus() == CpuList{mine.back()};
    confine_to({kMaxCpus - 1});
    ::_exit(confined && allowed_cpus() == CpuList{mine.back()} ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(allowed_cpus() == mine);
}

}  // namespace
}  // namespace sortie::cpu
