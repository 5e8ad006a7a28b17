#include "tests/common/config/broken_rules.h"

using namespace sortie::config;
using namespace sortie::test;

TEST_CASE("the default job breaks no rule, and only lacks token files for training") {
  CHECK(text_of(validate(JobConfig{})) == "");
  CHECK(text_of(validate_training(JobConfig{})) ==
        "D1 data.data_prefixes: no token files to train on; set it to the PREFIX of PREFIX.bin and "
        "PREFIX.idx (`sortie-train data build` makes them)");
}

TEST_CASE("a validation set may be called as the main set, where there is none") {
  JobConfig job;
  job.data.data_prefixes = {"/d/text"};
  job.data.validation_sets = {{"code", "/d/code"}, {"validation", "/d/other"}};
  CHECK(text_of(validate_training(job)) == "");
  job.data.validation_data_prefixes = {"/d/main"};
  CHECK(text_of(validate_training(job)).starts_with("D4 data.validation_sets.validation: "));
}

TEST_CASE("a network is an interface, a pattern of interfaces, or a CIDR") {
  JobConfig job;
  for (const char* good : {"", "eth1", "ib*", "enp3s0f0.100", "*", "10.1.0.0/16", "0.0.0.0/0",
                           "fd00::/64", "10.1.2.3/32"}) {
    CAPTURE(good);
    job.runner.network.interface = good;
    CHECK(text_of(validate(job)) == "");
  }
  for (const char* bad : {"10.1.0.0/", "10.1.0/16", "10.1.0.0/-1", "10.1.0.0/1 ", "fd00::/129", "/",
                          "a/b", "a-name-too-long-", "e\"", "eth0\n"}) {
    CAPTURE(bad);
    job.runner.network.interface = bad;
    CHECK(text_of(validate(job)).starts_with("F1 runner.network.interface: "));
  }
}

TEST_CASE("each rule of hosts, runners and restarts names the numbers and what to do") {
  const BrokenRule rows[] = {
      {[](JobConfig& job) { job.model.vocab_size = 0; },
       "F1 model.vocab_size: 0 is out of range; use 1 to 2147483647"},
      {[](JobConfig& job) {
         job.runner.hosts = {"a"};
         job.runner.hosts_file = "f";
       },
       "R1 runner.hosts_file: runner.hosts is set too; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.hosts = {"a", "b", "a"};
       },
       "R1 runner.hosts: runner.hosts[2]: host a is already in runner.hosts[0]; remove one of the "
       "two"},
      {[](JobConfig& job) {
         job.runner.program = {"", "x"};
       },
       "R2 runner.program: the program's name is empty; write it first"},
      {[](JobConfig& job) {
         job.runner.transport = {"", "{host}"};
       },
       "R2 runner.transport: the program's name is empty; write it first"},
      {[](JobConfig& job) {
         job.runner.transport = {"docker", "exec", "-i", "host"};
       },
       "R2 runner.transport: no argument of it has {host}, so it would reach the same place for "
       "every "
       "host; write {host} where the host's name belongs"},
      {[](JobConfig& job) {
         job.runner.transport = {"docker", "exec", "-i", "{host}"};
         job.runner.ssh.command = {"ssh"};
       },
       "R2 runner.transport: runner.ssh.command is set too; hosts are reached by one of the two, "
       "remove the other"},
      {[](JobConfig& job) { job.runner.heartbeat_timeout = Milliseconds(4000); },
       "R4 runner.heartbeat_timeout: 4s is not more than twice runner.heartbeat_interval = 2s, so "
       "one late message would look like a lost host; use more than 4s"},
      {[](JobConfig& job) {
         job.runner.env = {{"OMP_NUM_THREADS", "1"}, {"RANK", "0"}};
       },
       "R5 runner.env.RANK: RANK is set by Sortie itself, another value for each rank; remove it"},
      {[](JobConfig& job) {
         job.runner.env = {{"SORTIE_X", "1"}};
       },
       "R5 runner.env.SORTIE_X: SORTIE_X is set by Sortie itself, another value for each rank; "
       "remove it"},
      {[](JobConfig& job) {
         job.runner.env = {{"TORCHELASTIC_RUN_ID", "1"}};
       },
       "R5 runner.env.TORCHELASTIC_RUN_ID: TORCHELASTIC_RUN_ID is set by Sortie itself, another "
       "value for each rank; remove it"},
      {[](JobConfig& job) { job.runner.network.interface = "10.1.0.0/33"; },
       "F1 runner.network.interface: \"10.1.0.0/33\" is no network; write it like "
       "\"10.1.0.0/16\" or \"fd00::/64\""},
      {[](JobConfig& job) { job.runner.network.interface = "eth 1"; },
       "F1 runner.network.interface: \"eth 1\" is no name of an interface; write one of at most "
       "15 letters like \"eth1\", a pattern like \"ib*\", or a network like \"10.1.0.0/16\""},
      {[](JobConfig& job) { job.runner.network.tunnel = "ipsec"; },
       "F1 runner.network.tunnel: \"ipsec\" is not one of none | wireguard; write one of them"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.network.interface = "eth1";
       },
       "N1 runner.network.tunnel: runner.network.interface is set too, and the tunnel is the "
       "network of the ranks; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.master_addr = "10.1.0.1";
       },
       "N1 runner.network.tunnel: runner.master_addr is set too, and ranks meet at an address "
       "within the tunnel, which is known only at the start; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.allow_same_machine = true;
       },
       "N1 runner.network.tunnel: a machine has one end of the tunnel, and "
       "runner.allow_same_machine allows two names of one; remove one of the two"},
      {[](JobConfig& job) {
         job.runner.network.tunnel = "wireguard";
         job.runner.container.engine = "docker";
         job.runner.container.image = "debian:12";
         job.runner.container.network = "none";
       },
       "N1 runner.network.tunnel: the tunnel is a device of the host, which containers on the "
       "network \"none\" do not see; use runner.container.network = \"host\""},
      {[](JobConfig& job) {
         job.recovery.slow_swaps = 1;
         job.recovery.max_restarts = 1;
         job.watchdog.straggler_ratio = 0;
       },
       "H1 recovery.slow_swaps: a slow host leaves by a restart, once it was named, and "
       "watchdog.straggler_ratio is 0; set it"},
      {[](JobConfig& job) {
         job.recovery.grow_at = "checkpoint";
         job.recovery.max_restarts = 1;
       },
       "H2 recovery.grow_at: only a run that restarts with fewer hosts can take hosts in again, "
       "and recovery.min_hosts is 0; set it"},
  };
  check_rules(rows);
}

TEST_CASE("settings of the trainer may be in the environment of ranks") {
  JobConfig job;
  job.runner.env = {{"SORTIE_COMM_TIMEOUT", "60"},
                    {"SORTIE_COMM_DEBUG", "1"},
                    {"SORTIE_CUDA_MODULE", "/opt/libsortie-cuda.so"},
                    {"SORTIE_TIMED_PRODUCTS", "1"}};
  CHECK(text_of(validate(job)) == "");
}

TEST_CASE("every broken rule is reported, not only the first") {
  JobConfig job;
  job.runner.heartbeat_timeout = Milliseconds(1000);
  job.trainer.save_interval = 1;
  job.model.hidden_size = 255;
  CHECK(validate(job).size() == 3);
}
