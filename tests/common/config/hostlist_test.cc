#include "common/config/hostlist.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/base/atomic_file.h"

using namespace sortie;
using namespace sortie::config;

namespace {

using Hosts = std::vector<HostSlots>;
using Names = std::vector<std::string>;

std::string line_error(std::string_view line) {
  const auto hosts = parse_host_line(line, 1);
  return hosts ? "no error" : hosts.error().message;
}

}  // namespace

TEST_CASE("host lines") {
  CHECK(parse_host_line("a", 2).value() == Hosts{{"a", {0, 1}}});
  CHECK(parse_host_line("  a.b-c_1 \t slots=3 \r", 1).value() == Hosts{{"a.b-c_1", {0, 1, 2}}});
  CHECK(parse_host_line("a slots=0,2,5", 1).value() == Hosts{{"a", {0, 2, 5}}});
  CHECK(parse_host_line("a slots=3,", 1).value() == Hosts{{"a", {3}}});
  CHECK(parse_host_line("a slots=5,0", 1).value() == Hosts{{"a", {5, 0}}});
  CHECK(parse_host_line("g[08-10,12] slots=1", 4).value() ==
        Hosts{{"g08", {0}}, {"g09", {0}}, {"g10", {0}}, {"g12", {0}}});
  CHECK(parse_host_line("[::1] slots=1", 4).value() == Hosts{{"[::1]", {0}}});
  CHECK(!parse_host_line(std::string("[fe80::1\0x]", 12), 1));  // C functions would stop at the NUL
  CHECK(parse_host_line("[fe80::1%eth0]", 1).value() == Hosts{{"[fe80::1%eth0]", {0}}});
  CHECK(parse_host_line("10.0.0.[1-2]", 1).value() == Hosts{{"10.0.0.1", {0}}, {"10.0.0.2", {0}}});
}

TEST_CASE("a host line names a site, before or after the slots") {
  const Hosts both{{"a", {0, 1}, "oslo"}, {"b", {0, 1}, "oslo"}};
  CHECK(parse_host_line("a,b slots=2 site=oslo", 1).value() == both);
  CHECK(parse_host_line("a,b\tsite=oslo  slots=2 ", 1).value() == both);
  CHECK(parse_host_line("a,b site=oslo", 2).value() == both);
  CHECK(parse_host_line("a site=" + std::string(63, 'x'), 1).has_value());
  CHECK(!parse_host_line("a site=" + std::string(64, 'x'), 1));
}

TEST_CASE("either every host has a site or none has") {
  RunnerConfig runner;
  runner.hosts = {"a slots=2 site=rome", "b[1-2] site=oslo", "c slots=3, site=rome"};
  const Hosts hosts = job_hosts(runner).value();
  CHECK(host_lines(hosts) == Names{"a slots=0,1 site=rome", "b1 slots=0, site=oslo",
                                   "b2 slots=0, site=oslo", "c slots=3, site=rome"});
  RunnerConfig again;
  again.hosts = host_lines(hosts);
  CHECK(job_hosts(again).value() == hosts);
  CHECK(sites_of(hosts) == Names{"rome", "oslo"});
  CHECK(check_host_lines(runner).value() == Names{"rome", "oslo"});
  CHECK(sites_of({{"a", {0}}, {"b", {0}}}).empty());
  runner.hosts = {"a site=rome", "b"};
  CHECK(job_hosts(runner).error().message ==
        "runner.hosts[1]: host b has no site, and a is in site rome; write site=NAME for every "
        "host, or for none");
  CHECK(parse_host_file("a\nb site=rome\n", "hosts", 1).error().message ==
        "hosts:2: host b is in site rome, and a has none; write site=NAME for every host, or for "
        "none");
}

TEST_CASE("bad host lines say what to write") {
  const std::string slots_advice = "; write slots=4 for four slots or slots=0,2,5 for device ids";
  struct Row {
    const char* line;
    std::string error;
  };
  const Row rows[] = {
      {"", "a host line is empty; write NAME or NAME slots=N"},
      {"a slots=0", "slots=0: \"0\" is no number from 1 to 4096" + slots_advice},
      {"a slots=", "slots=: \"\" is no number from 1 to 4096" + slots_advice},
      {"a slots=4097", "slots=4097: \"4097\" is no number from 1 to 4096" + slots_advice},
      {"a slots=1,1", "slots=1,1: slot 1 twice; remove one"},
      {"a slots=1,,2", "slots=1,,2: \"\" is no number from 0 to 4095" + slots_advice},
      {"a slots=,", "slots=,: \"\" is no number from 0 to 4095" + slots_advice},
      {"a slots=-1", "slots=-1: \"-1\" is no number from 1 to 4096" + slots_advice},
      {"a slots=1 slots=2", "slots= twice in one host line; remove one"},
      {"a site=b slots=1 site=b", "site= twice in one host line; remove one"},
      {"a site=",
       "\"\" is no name of a site; use at most 63 letters, digits, '_' and '-', no '-' first"},
      {"a site=b.c",
       "\"b.c\" is no name of a site; use at most 63 letters, digits, '_' and '-', no '-' first"},
      {"a site=-b",
       "\"-b\" is no name of a site; use at most 63 letters, digits, '_' and '-', no '-' first"},
      {"a slot=1",
       "\"slot=1\" after the host name is not understood; a line is NAME, NAME slots=N "
       "or NAME slots=A,B,..., each with site=NAME where sites train together"},
      {"a:1",
       "\"a:1\": a host is a name alone; set the port in runner.ssh.port or ~/.ssh/config, "
       "and write an IPv6 address as \"[::1]\""},
      {"me@a",
       "\"me@a\": a host is a name alone; set the user in runner.ssh.user or "
       "~/.ssh/config"},
      {"-oProxyCommand=x",
       "\"-oProxyCommand=x\" is no host name; use letters, digits, '.', '_' "
       "and '-', no '.' or '-' first"},
      {"a,,b", "a host name is empty; write a name between the commas"},
      {"a,", "a host name is empty; write a name between the commas"},
      {"g[", "\"g[\": brackets do not match; write ranges like gpu[01-08]"},
      {"g]1[", "\"g]1[\": brackets do not match; write ranges like gpu[01-08]"},
      {"g[]", "[] is no range; write numbers like [1-8] or [01-08,11]"},
      {"g[a-b]", "[a-b] is no range; write numbers like [1-8] or [01-08,11]"},
      {"g[1-]", "[1-] is no range; write numbers like [1-8] or [01-08,11]"},
      {"g[+1]", "[+1] is no range; write numbers like [1-8] or [01-08,11]"},
      {"g[8-1]", "[8-1] counts down; write [1-8]"},
      {"g[01-8]", "[01-8] mixes 2 and 1 digits; pad both ends alike"},
      {"g[1-08]", "[1-08] mixes 1 and 2 digits; pad both ends alike"},
      {"g[1-2,2]", "host g2 is twice in \"g[1-2,2]\"; remove one"},
      {"g[0-65536]", "[0-65536] is more than 65536 hosts; split the job"},
      {"g[0-999999999999999999]", "[0-999999999999999999] is more than 65536 hosts; split the job"},
      {"g[1-1000]x[1-1000]",
       "\"g[1-1000]x[1-1000]\" is more than 65536 hosts or 253 characters; split the job"},
      {"a[0-65535],b", "more than 65536 hosts; split the job"},
      {"g[9999999999999999999]",
       "[9999999999999999999] is no range; write numbers like [1-8] or [01-08,11]"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.line);
    CHECK(line_error(row.line) == row.error);
  }
  CHECK(line_error(std::string(254, 'a')).find("254 characters; use at most 253") !=
        std::string::npos);
  CHECK(line_error(std::string(253, 'a')) == "no error");
  CHECK(line_error("a[0-65535]") == "no error");
}

TEST_CASE("more ranks than any job has are refused before they take memory") {
  CHECK(line_error("h[1-65536] slots=4096") ==
        "65536 hosts with 4096 slots are more than 1048576 ranks; split the job");
  CHECK(parse_host_line("h[1-256] slots=4096", 1).value().size() == 256);
  CHECK(parse_host_file("a[1-200] slots=4096\nb[1-200] slots=4096\n", "hosts", 1).error().message ==
        "hosts:2: more than 1048576 ranks; split the job");
}

TEST_CASE("host files have comments, blank lines, and an error that names both lines") {
  CHECK(parse_host_file("# all\n\na slots=2 # first\r\nb\n  c,d slots=1,", "h", 3).value() ==
        Hosts{{"a", {0, 1}}, {"b", {0, 1, 2}}, {"c", {1}}, {"d", {1}}});
  CHECK(parse_host_file("", "h", 1).value().empty());
  CHECK(parse_host_file("a\n\nb[1-3]\nb2", "hosts.txt", 1).error().message ==
        "hosts.txt:4: host b2 is already in line 3; remove one of the two");
  CHECK(parse_host_file("a\n?", "hosts.txt", 1).error().message ==
        "hosts.txt:2: \"?\" is no host name; use letters, digits, '.', '_' and '-', no '.' or '-' "
        "first");
  CHECK(parse_host_file("a[0-65535]\nb\n", "h", 1).error().message ==
        "h:2: more than 65536 hosts; split the job");
}

TEST_CASE("the hosts of a job are the list, the file, or this machine") {
  RunnerConfig runner;
  runner.default_slots = 2;
  CHECK(job_hosts(runner).value() == Hosts{{"localhost", {0, 1}}});
  runner.hosts = {"b slots=1", "a"};
  CHECK(job_hosts(runner).value() == Hosts{{"b", {0}}, {"a", {0, 1}}});
  runner.hosts = {"b[1-2]", "b2"};
  CHECK(job_hosts(runner).error().message ==
        "runner.hosts[1]: host b2 is already in runner.hosts[0]; remove one of the two");
  runner.hosts_file = "x";
  CHECK(job_hosts(runner).error().message ==
        "runner.hosts and runner.hosts_file: both are set; remove one of the two");
  runner.hosts.clear();
  runner.hosts_file = "/nonexistent/hosts";
  CHECK(job_hosts(runner).error().code == ErrorCode::not_found);
  CHECK(job_hosts(runner).error().message ==
        "runner.hosts_file: /nonexistent/hosts: No such file or directory");

  char folder_name[] = "/tmp/sortie-test-XXXXXX";
  REQUIRE(mkdtemp(folder_name) != nullptr);
  const std::filesystem::path file = std::filesystem::path(folder_name) / "hosts";
  runner.hosts_file = file.string();
  REQUIRE(write_file_atomic(file, "c\n"));
  CHECK(job_hosts(runner).value() == Hosts{{"c", {0, 1}}});
  REQUIRE(write_file_atomic(file, "# none\n"));
  CHECK(job_hosts(runner).error().message ==
        file.string() + ": no host in the file; write one NAME [slots=N] per line");
  std::filesystem::remove_all(folder_name);
}

TEST_CASE("expressions keep their order and run the last range fastest") {
  CHECK(expand_host_expression("x,h[01-02], a").value() == Names{"x", "h01", "h02", "a"});
  CHECK(expand_host_expression("r[1-2]n[1-2].dc").value() ==
        Names{"r1n1.dc", "r1n2.dc", "r2n1.dc", "r2n2.dc"});
  CHECK(expand_host_expression("gpu[01-04] slots=2").error().message ==
        "\"gpu01 slots=2\" is no host name, and lists of hosts have no slots; use --slots 2");
  CHECK(expand_host_expression("a,b,a").error().message ==
        "host a is twice in \"a,b,a\"; remove one");
}

TEST_CASE("folding is the inverse of expanding") {
  struct Row {
    Names names;
    const char* folded;
  };
  const Row rows[] = {
      {{}, ""},
      {{"a"}, "a"},
      {{"gpu01", "gpu02", "gpu12"}, "gpu[01-02,12]"},
      {{"gpu10", "gpu9", "gpu8", "gpu9"}, "gpu[8-10]"},
      {{"n08", "n09", "n10", "n100", "n99"}, "n[08-10,99-100]"},
      {{"n1", "n01", "n001"}, "n[001,01,1]"},
      {{"r1n1", "r1n2", "r2n1", "r2n2"}, "r[1-2]n[1-2]"},
      {{"r1n1", "r1n2", "r2n1"}, "r1n[1-2],r2n1"},
      {{"10.0.0.1", "10.0.0.2", "[::1]", "[::2]", "b"}, "10.0.0.[1-2],[::1],[::2],b"},
      {{"login", "gpu1.x", "gpu2.x"}, "gpu[1-2].x,login"},
      {{"n0", "n1", "n00", "n01"}, "n[0,00-01,1]"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.folded);
    CHECK(fold_host_names(row.names) == row.folded);
    if (row.names.empty()) continue;
    Names expanded = expand_host_expression(row.folded).value();
    Names expected = row.names;
    std::ranges::sort(expanded);
    std::ranges::sort(expected);
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    CHECK(expanded == expected);
  }
}
