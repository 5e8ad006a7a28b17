#include "common/config/hostgroups.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "common/config/hostlist.h"
#include "common/config/validate.h"
#include "tests/support/temp_dir.h"

namespace sortie::config {
namespace {

using Names = std::vector<std::string>;

const char* const kFile =
    "# racks\n"
    "all = [\"@gpu\", \"login\"]\n"
    "gpu = \"gpu[01-04]\"\n"
    "broken = \"gpu[02-03],old7\"\n"
    "good = \"@gpu,!@broken\"\n";

TEST_CASE("groups, ranges and exclusions in one expression") {
  const auto groups = HostGroups::parse(kFile, "groups.toml");
  REQUIRE_MESSAGE(groups, groups.error().message);
  struct Row {
    const char* expression;
    const char* folded;
  };
  for (const Row& row :
       {Row{"@gpu", "gpu[01-04]"}, Row{"@all", "gpu[01-04],login"}, Row{"@good", "gpu[01,04]"},
        Row{"@gpu,!gpu02", "gpu[01,03-04]"}, Row{"@gpu, !gpu[01-02] ,x[1-2]", "gpu[03-04],x[1-2]"},
        Row{"a[1-9],!a[2-8]", "a[1,9]"}, Row{"@gpu,@all,login", "gpu[01-04],login"},
        Row{"@gpu,!@broken,gpu02", "gpu[01-02,04]"}, Row{"gpu01,@gpu", "gpu[01-04]"}}) {
    CAPTURE(row.expression);
    const auto names = expand_host_expression(row.expression, &*groups);
    REQUIRE_MESSAGE(names, names.error().message);
    CHECK(fold_host_names(*names) == row.folded);
  }
  CHECK(*expand_host_expression("@all,!gpu03", &*groups) ==
        Names{"gpu01", "gpu02", "gpu04", "login"});
  CHECK(*exclude_hosts({"gpu01", "gpu02", "x"}, "@broken,x", &*groups) == Names{"gpu01"});
}

TEST_CASE("expressions that leave something to be asked are refused") {
  const auto groups = HostGroups::parse(kFile, "groups.toml");
  REQUIRE(groups);
  struct Row {
    const char* expression;
    const char* message;
  };
  for (const Row& row :
       {Row{"@gpo", "there is no group @gpo in groups.toml; did you mean @gpu?"},
        Row{"@", "\"@\" is no group; write @NAME, where the groups file has NAME = \"gpu[01-08]\""},
        Row{"@gpu[1-2]",
            "\"@gpu[1-2]\" is no group; write @NAME, where the groups file has NAME = "
            "\"gpu[01-08]\""},
        Row{"@gpu,!gpu9",
            "\"gpu9\" is not among the hosts and can not be left out; check its spelling"},
        Row{"a,!a", "no host is left of \"a,!a\"; leave fewer out"},
        Row{"@gpu,!", "a host name is empty; write a name between the commas"},
        Row{"a,a", "host a is twice in \"a,a\"; remove one"},
        Row{"me@gpu01",
            "\"me@gpu01\": a host is a name alone; set the user in runner.ssh.user or "
            "~/.ssh/config"}}) {
    CAPTURE(row.expression);
    const auto names = expand_host_expression(row.expression, &*groups);
    REQUIRE(!names);
    CHECK(names.error().message == row.message);
    CHECK(names.error().code == ErrorCode::config);
  }
  CHECK(expand_host_expression("@gpu").error().message ==
        "there is no group @gpu; name a groups file with --groups");
  CHECK(exclude_hosts({"a"}, "a").error().message ==
        "no host is left without \"a\"; leave fewer out");
  CHECK(exclude_hosts({"a", "b"}, "c").error().message.starts_with("\"c\" is not among the hosts"));
}

TEST_CASE("a groups file shows all its problems, each with its place") {
  const auto groups = HostGroups::parse(
      "gpu = \"gpu[01-\"\n"
      "a = \"@b\"\n"
      "b = [\"x\", \"@c\"]\n"
      "c = \"@a\"\n"
      "n = 7\n"
      "list = [\"ok\", 3]\n"
      "\"no name\" = \"x\"\n"
      "unknown = \"@nobody\"\n"
      "empty = []\n"
      "fine = \"h[1-3]\"\n",
      "g.toml");
  REQUIRE(!groups);
  CHECK(groups.error().code == ErrorCode::config);
  CHECK(groups.error().message ==
        "g.toml:1:7: group gpu: \"gpu[01-\": brackets do not match; write ranges like gpu[01-08]\n"
        "g.toml:4:5: @a > @b > @c > @a goes round in a circle; take one of them out\n"
        "g.toml:5:5: a group is a host expression or a list of them, not 7; write NAME = "
        "\"gpu[01-08]\"\n"
        "g.toml:6:15: a group is a host expression or a list of them, not 3; write NAME = "
        "\"gpu[01-08]\"\n"
        "g.toml:7:1: \"no name\" is no group name; use up to 64 letters, digits, '.', '_' and '-', "
        "no '.' or '-' first\n"
        "g.toml:8:11: group unknown: there is no group @nobody in g.toml; write it there: nobody = "
        "\"gpu[01-08]\"");
  const auto syntax = HostGroups::parse("gpu = gpu[01-04]\n", "g.toml");
  REQUIRE(!syntax);
  CHECK(syntax.error().message.starts_with("g.toml:1:"));
}

TEST_CASE("many groups over groups stay bounded") {
  std::string text = "g0 = \"h[1-60000]\"\n";
  for (int i = 1; i < 40; ++i)
    text += "g" + std::to_string(i) + " = \"@g" + std::to_string(i - 1) + "\"\n";
  const auto groups = HostGroups::parse(text, "g");
  REQUIRE(!groups);
  CHECK(groups.error().message.find("more than 1048576 hosts in all groups") != std::string::npos);
  std::string deep = "g0 = \"h\"\n";
  for (int i = 100; i > 0; --i)
    deep = "g" + std::to_string(i) + " = \"@g" + std::to_string(i - 1) + "\"\n" + deep;
  const auto too_deep = HostGroups::parse(deep, "g");
  REQUIRE(!too_deep);
  CHECK(too_deep.error().message.find("groups inside each other") != std::string::npos);
}

TEST_CASE("the hosts of a job may be groups, of a named file or the user's") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "groups.toml", kFile);
  RunnerConfig runner;
  runner.hosts = {"@good slots=2", "login"};
  runner.groups_file = dir.str("groups.toml");
  const auto hosts = job_hosts(runner);
  REQUIRE_MESSAGE(hosts, hosts.error().message);
  CHECK(host_lines(*hosts) == Names{"gpu01 slots=0,1", "gpu04 slots=0,1", "login slots=0,"});
  JobConfig job;
  job.runner = runner;
  job.runner.groups_file = "/nowhere";  // validate() reads no file
  CHECK(validate(job).empty());
  CHECK(!job_hosts(job.runner));
  job.runner.hosts = {"@good", "x", "x"};
  REQUIRE(validate(job).size() == 1);
  CHECK(validate(job)[0].rule == "R1");
  runner.hosts = {};
  runner.hosts_file = dir.str("hosts");
  test::write_text(dir / "hosts", "@gpu slots=1 # all\n");
  CHECK(job_hosts(runner)->size() == 4);
}

}  // namespace
}  // namespace sortie::config
