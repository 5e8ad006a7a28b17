// The table of XIDs, and how findings are judged by it.
#include "common/health/xid.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "common/health/judge.h"

using namespace sortie;
using namespace sortie::health;

namespace {

Judgement of(int code, std::optional<int> recovery = {}, std::optional<bool> fatal = {}) {
  Finding finding{.kind = Kind::xid, .code = code};
  finding.recovery = recovery;
  finding.fatal = fatal;
  return judge(finding);
}

}  // namespace

TEST_CASE("codes of all classes, and those between ranges") {
  struct Row {
    int code;
    Class kind;
    Action action;
    Remedy remedy;
  };
  using enum Class;
  using enum Action;
  for (const Row& row : {Row{13, app, restart, Remedy::check_program},
                         Row{31, app, restart, Remedy::check_program},
                         Row{43, app, restart, Remedy::check_program},
                         Row{45, consequence, watch, Remedy::none},
                         Row{48, hardware, cordon, Remedy::reset_gpu},
                         Row{63, hardware, drain, Remedy::reset_gpu},
                         Row{64, hardware, cordon, Remedy::reset_gpu},
                         Row{74, Class::link, restart, Remedy::nvlink},
                         Row{79, hardware, cordon, Remedy::reboot},
                         Row{92, hardware, watch, Remedy::none},
                         Row{94, hardware, restart, Remedy::reset_gpu},
                         Row{95, hardware, cordon, Remedy::reset_gpu},
                         Row{96, app, restart, Remedy::check_program},
                         Row{105, app, restart, Remedy::check_program},
                         Row{106, info, ignore, Remedy::none},
                         Row{119, driver, cordon, Remedy::reset_gpu},
                         Row{130, driver, restart, Remedy::reset_gpu},
                         Row{143, hardware, cordon, Remedy::reset_gpu},
                         Row{145, Class::link, restart, Remedy::nvlink},
                         Row{158, Class::link, cordon, Remedy::reset_gpu}}) {
    CAPTURE(row.code);
    const Judgement judgement = of(row.code);
    CHECK(judgement.kind == row.kind);
    CHECK(judgement.action == row.action);
    CHECK(judgement.remedy == row.remedy);
    CHECK(judgement.what.starts_with("XID " + std::to_string(row.code) + ": "));
  }
}

TEST_CASE("a code that nobody knows is watched, and explains nothing") {
  for (const int code : {-1, 0, 1, 7, 12, 47, 87, 108, 138, 164, 170, 174, 5000, 1'000'000}) {
    CAPTURE(code);
    const Judgement judgement = of(code);
    CHECK(judgement.kind == Class::info);
    CHECK(judgement.action == Action::watch);
    CHECK_FALSE(judgement.explains());
  }
}

TEST_CASE("no class below a link's, and no milder action, explains a failure") {
  std::size_t explaining = 0, cordons = 0;
  for (int code = 0; code < 300; ++code) {
    CAPTURE(code);
    const Judgement judgement = of(code);
    if (judgement.explains()) ++explaining;
    if (judgement.action == Action::cordon) {
      ++cordons;
      CHECK(judgement.kind >= Class::link);
      CHECK(judgement.remedy != Remedy::none);  // a person must know what to do
    }
    if (judgement.kind <= Class::resource) CHECK_FALSE(judgement.explains());
  }
  CHECK(explaining > cordons);
  CHECK(cordons > 10);
}

TEST_CASE("43 and 45 say that work was cut off, not by what") {
  CHECK(of(43).inherits);
  CHECK(of(45).inherits);
  CHECK_FALSE(of(13).inherits);
  CHECK_FALSE(of(45).explains());
}

TEST_CASE("what the driver asks for comes before the table") {
  CHECK(of(13, kRecoveryReset).action == Action::cordon);
  CHECK(of(13, kRecoveryReset).kind == Class::hardware);
  CHECK(of(13, kRecoveryReset).remedy == Remedy::reset_gpu);
  CHECK(of(31, kRecoveryReboot).remedy == Remedy::reboot);
  CHECK(of(95, kRecoveryDrainReset).action == Action::drain);
  // The driver asks for no recovery: the finding still explains the failure, the host stays in use.
  CHECK(of(95, kRecoveryNone).action == Action::restart);
  CHECK(of(95, kRecoveryNone).explains());
  CHECK(of(13, kRecoveryNone).action == of(13).action);
  CHECK(of(79, 99).action == of(79).action);  // a value of another driver version
  CHECK(of(43, kRecoveryReset).inherits == false);
}

TEST_CASE("the newer NVLink codes have their weight in the text") {
  CHECK(of(149, {}, true).action == Action::cordon);
  CHECK(of(149, {}, false).action == Action::watch);
  CHECK(of(149).action == Action::restart);
  CHECK(of(79, {}, false).action == Action::cordon);  // the text of other codes does not matter
}

TEST_CASE("154 is what the driver asks for") {
  CHECK(of(154).action == Action::watch);
  CHECK(of(154, kRecoveryReset).action == Action::cordon);
  CHECK(of(154, kRecoveryNone).action == Action::watch);
}

TEST_CASE("every kind of finding means something, and has a name of its own") {
  std::set<std::string_view> names(kKindNames.begin(), kKindNames.end());
  CHECK(names.size() == kKindNames.size());
  for (std::size_t i = 0; i < kKindNames.size(); ++i) {
    CAPTURE(kKindNames[i]);
    CHECK(kind_of(kKindNames[i]) == static_cast<Kind>(i));
    Finding finding{.kind = static_cast<Kind>(i)};
    CHECK_FALSE(judge(finding).what.empty());
  }
  CHECK_FALSE(kind_of("xids"));
  CHECK_FALSE(kind_of(""));
}

TEST_CASE(
    "the command for a person names the host and the GPU, and nothing that a host has made up") {
  Finding finding{.kind = Kind::xid, .code = 95};
  finding.device = "0000:3b:00.0";
  finding.gpu = 3;
  CHECK(remedy_command(Remedy::reset_gpu, "h03", finding) ==
        "ssh h03 sudo nvidia-smi --gpu-reset -i 0000:3b:00.0");
  CHECK(remedy_command(Remedy::reboot, "h03", finding) == "ssh h03 sudo systemctl reboot");
  CHECK(remedy_command(Remedy::reboot, "localhost", finding) == "sudo systemctl reboot");
  CHECK(device_text(finding) == "GPU 3 (0000:3b:00.0)");
  finding.device = "0; rm -rf /";
  CHECK(remedy_command(Remedy::reset_gpu, "h03", finding) ==
        "ssh h03 sudo nvidia-smi --gpu-reset -i 3");
  finding.gpu.reset();
  CHECK(remedy_command(Remedy::reset_gpu, "h03", finding).empty());
  for (const char* hostile : {"sda; reboot", "$(reboot)", "`x`", "-x", "a b", "../x", "a|b", "a&b",
                              "a\nb", "a'b", "a\"b", "a>b", ""}) {
    CAPTURE(hostile);
    finding.device = hostile;
    CHECK(remedy_command(Remedy::storage, "h03", finding).empty());
    CHECK(remedy_command(Remedy::network, "h03", finding).empty());
  }
  finding.device = "0000:c1:00.0";  // of an adapter, whose interface is not known
  CHECK(remedy_command(Remedy::network, "h03", finding) == "ssh h03 lspci -vv -s 0000:c1:00.0");
  finding.device = "nvme0n1";
  CHECK(remedy_command(Remedy::storage, "h03", finding) == "ssh h03 sudo smartctl -a /dev/nvme0n1");
}
