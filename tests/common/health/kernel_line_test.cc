// Kernel messages that are findings, and look-alikes that are not.
#include "common/health/kernel_line.h"

#include <doctest/doctest.h>

#include <string>

#include "common/health/judge.h"

using namespace sortie;
using namespace sortie::health;

TEST_CASE("records of /dev/kmsg") {
  const auto record = parse_kernel_record(
      "6,4321,98765432,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=c189:1\n");
  REQUIRE(record);
  CHECK(record->level == 6);
  CHECK(record->facility == 0);
  CHECK(record->sequence == 4321);
  CHECK(record->text == "usb 1-1: new device");
  CHECK(parse_kernel_record("30,1,2,-;systemd")->facility == 3);
  CHECK(parse_kernel_record("4,1,2,-,caller=T12;x")->text == "x");
  CHECK(parse_kernel_record("4,1,2;")->text == "");
  for (const char* broken :
       {"", ";", "x", "4", "4,", "4,1", "4,1,", "4,1,x;t", "-4,1,2,-;t", "4,-1,2,-;t",
        "99999999,1,2,-;t", "4,1,2,-", "4,1,99999999999999999999999,-;t", "4,1,2,-\n;t",
        "NVRM: Xid (PCI:0000:3b:00): 79, x"}) {
    CAPTURE(broken);
    CHECK_FALSE(parse_kernel_record(broken));
  }
}

TEST_CASE("XIDs in the forms of several drivers") {
  struct Row {
    const char* text;
    int code;
    const char* device;
  };
  for (const Row& row :
       {Row{"NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            79, "0000:3b:00.0"},
        Row{"NVRM: Xid (PCI:0000:05:00): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. MMU "
            "Fault",
            31, "0000:05:00.0"},
        Row{"NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0"},
        Row{"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=3, Ch 00000008", 43, "0000:01:00.0"},
        Row{"NVRM: Xid (PCI:0009:0A:1f.3): 119, Timeout after 6s of waiting", 119,
            "0009:0a:1f.3"}}) {
    CAPTURE(row.text);
    const auto finding = kernel_finding(row.text);
    REQUIRE(finding);
    CHECK(finding->kind == Kind::xid);
    CHECK(finding->code == row.code);
    CHECK(finding->device == row.device);
    CHECK(finding->source == "kmsg");
    CHECK(finding->text == row.text);
  }
}

TEST_CASE("the weight of NVLink's codes, and the action that a driver asks for") {
  const auto nonfatal = kernel_finding(
      "NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 09 (0x00000004 0x80000000)");
  REQUIRE(nonfatal);
  CHECK(nonfatal->fatal == false);
  const auto fatal =
      kernel_finding("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 02");
  REQUIRE(fatal);
  CHECK(fatal->fatal == true);
  const auto action = kernel_finding(
      "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU "
      "Reset Required)");
  REQUIRE(action);
  CHECK(action->recovery == kRecoveryReset);
  CHECK(judge(*action).action == Action::cordon);
  CHECK_FALSE(kernel_finding("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from "
                             "0x0 (None) to 0xffff (?)")
                  ->recovery);
  CHECK_FALSE(kernel_finding("NVRM: Xid (PCI:0009:01:00): 154, recovery")->recovery);
}

TEST_CASE("NVSwitches, and a GPU that is gone") {
  const auto mild = kernel_finding(
      "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore");
  REQUIRE(mild);
  CHECK(mild->kind == Kind::sxid);
  CHECK(mild->code == 28006);
  CHECK(mild->fatal == false);
  CHECK(judge(*mild).action == Action::watch);
  const auto fatal = kernel_finding(
      "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up");
  REQUIRE(fatal);
  CHECK(judge(*fatal).action == Action::cordon);
  CHECK_FALSE(kernel_finding("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal"));
  const auto gone = kernel_finding("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.");
  REQUIRE(gone);
  CHECK(gone->kind == Kind::gpu_lost);
  CHECK(gone->device == "0000:3b:00.0");
}

TEST_CASE("machine checks: corrected, uncorrected, unknown") {
  const auto weight = [](const char* text) {
    CAPTURE(text);
    const auto finding = kernel_finding(text);
    REQUIRE(finding);
    CHECK(finding->kind == Kind::machine_check);
    return finding->fatal;
  };
  CHECK(weight("mce: [Hardware Error]: Machine check events logged") == std::nullopt);
  CHECK(weight("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400") == true);
  CHECK(weight("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090") == false);
  CHECK(weight("mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 0: "
               "f200000000000800") == true);
  CHECK(weight("{1}[Hardware Error]: event severity: corrected") == false);
  CHECK(weight("{2}[Hardware Error]: event severity: fatal") == true);
  CHECK(weight("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0") == false);
  CHECK(weight("EDAC MC1: 1 UE memory read error on CPU_SrcID#1") == true);
  CHECK(weight("Memory failure: 0x3c4f2: Sending SIGBUS to python:123 due to hardware memory "
               "corruption") == true);
  CHECK_FALSE(kernel_finding("mce: [Hardware Error]: TSC 0 ADDR 1234"));
  CHECK_FALSE(kernel_finding("mce: CPU0: Thermal monitoring enabled (TM1)"));
  CHECK_FALSE(kernel_finding("EDAC MC: Ver: 3.0.0"));
}

TEST_CASE("disks and file systems, but not drives without a disk") {
  struct Row {
    const char* text;
    const char* device;
  };
  for (const Row& row :
       {Row{"blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)", "sda"},
        Row{"I/O error, dev nvme0n1, sector 123 op 0x1:(WRITE) flags 0x800", "nvme0n1"},
        Row{"critical medium error, dev sdb, sector 99 op 0x0:(READ)", "sdb"},
        Row{"Buffer I/O error on dev dm-0, logical block 5, lost async page write", "dm-0"},
        Row{"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading",
            "sda1"},
        Row{"EXT4-fs (sda1): Remounting filesystem read-only", "sda1"},
        Row{"XFS (nvme1n1p2): Metadata I/O Error, or log I/O error in xlog", "nvme1n1p2"},
        Row{"BTRFS error (device sdc: state EA): forced readonly", "sdc"},
        Row{"nvme nvme0: I/O 12 QID 3 timeout, aborting", "nvme0"},
        Row{"nvme nvme1: controller is down; will reset: CSTS=0xffffffff", "nvme1"}}) {
    CAPTURE(row.text);
    const auto finding = kernel_finding(row.text);
    REQUIRE(finding);
    CHECK(finding->kind == Kind::disk);
    CHECK(finding->device == row.device);
  }
  for (const char* text :
       {"blk_update_request: I/O error, dev sr0, sector 0", "I/O error, dev fd0, sector 0",
        "I/O error, dev loop3, sector 0", "I/O error, dev ../../etc, sector 0",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode", "nvme nvme0: 8/0/0 queues",
        "XFS (sda1): Mounting V5 Filesystem", "EXT4-fs error (device sda1"}) {
    CAPTURE(text);
    CHECK_FALSE(kernel_finding(text));
  }
  CHECK(kernel_finding("nfs: server nas01 not responding, still trying")->kind == Kind::storage);
  CHECK_FALSE(kernel_finding("nfs: server nas01 OK"));
}

TEST_CASE("memory, network adapters, PCIe") {
  CHECK(kernel_finding("Out of memory: Killed process 4242 (python) total-vm:1kB")->kind ==
        Kind::oom_kill);
  CHECK(kernel_finding("Memory cgroup out of memory: Killed process 17 (x) total-vm:1kB")->kind ==
        Kind::oom_kill);
  CHECK_FALSE(kernel_finding("Out of memory and no killable processes..."));
  CHECK(kernel_finding("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out")->device ==
        "eth0");
  CHECK_FALSE(kernel_finding("NETDEV WATCHDOG: eth0 (mlx5_core): x"));
  CHECK(kernel_finding("mlx5_core 0000:c1:00.0: device's health compromised - reached miss count")
            ->device == "0000:c1:00.0");
  CHECK_FALSE(kernel_finding("mlx5_core 0000:c1:00.0: Port module event: cable plugged"));
  const auto fatal = kernel_finding(
      "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0");
  REQUIRE(fatal);
  CHECK(fatal->fatal == true);
  CHECK(kernel_finding("pcieport 0000:00:03.0: AER: Multiple Uncorrected (Non-Fatal) error "
                       "received: 0000:3b:00.0")
            ->fatal == false);
  CHECK_FALSE(kernel_finding("pcieport 0000:00:03.0: AER: Corrected error received: 0000:3b:00.0"));
}

TEST_CASE("nobody but the kernel can say it") {
  const std::string xid = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
  CHECK(record_finding("4,1,2,-;" + xid));
  CHECK_FALSE(record_finding("12,1,2,-;" + xid));  // facility 1: written to /dev/kmsg by a process
  CHECK_FALSE(record_finding(xid));
  // A process may have any name of up to 15 bytes, and many kernel messages contain the name.
  for (const char* text :
       {"NVRM: Xid (PCI:[123]: segfault at 0 ip 0000 sp 0000 error 4 in x[1+2]",
        "python[1]: segfault NVRM: Xid (PCI:0000:3b:00): 79, x",
        "traps: NVRM: Xid (PCI[12] general protection fault", "NVRM: Xid (PCI:0000:3b:00): 79x",
        "NVRM: Xid (PCI:0000:3b:00): -79, x", "NVRM: Xid (PCI:0000:3b:00): 0, x",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999, x", "NVRM: Xid (PCI:zzzz:3b:00): 79, x",
        "NVRM: Xid (PCI:0000:3b:00; rm): 79, x", "NVRM: Xid (): 79, x", "NVRM: Xid (PCI:0000:3b:00",
        "NVRM: ", "NVRM: Xid (", "", "nvidia-nvswitch: SXid (PCI:0000:c1:00.0): 1, Fatal",
        "Out of memory: Killed process x", " NVRM: Xid (PCI:0000:3b:00): 79, x"}) {
    CAPTURE(text);
    CHECK_FALSE(kernel_finding(text));
  }
}

TEST_CASE("odd bytes and long lines stay one short line of ASCII") {
  std::string text = "NVRM: Xid (PCI:0000:3b:00): 79, \x1b[31m\xff\"\\\t";
  text += std::string(5000, 'x');
  const auto finding = kernel_finding(text);
  REQUIRE(finding);
  CHECK(finding->text.size() == kMaxTextBytes);
  for (const char c : finding->text) CHECK((c >= 0x20 && c <= 0x7e));
  const std::string line = to_line(*finding);
  CHECK(line.size() < 4096);
  CHECK(line.starts_with(R"({"type":"health","kind":"xid","code":79,"device":"0000:3b:00.0")"));
  CHECK(line.find(R"(\"\\?)") != line.npos);
}

TEST_CASE("PCI addresses in the forms of kernel and NVML") {
  CHECK(pci_address("00000000:3B:00.0") == "0000:3b:00.0");
  CHECK(pci_address("0000:3b:00") == "0000:3b:00.0");
  CHECK(pci_address("00010000:01:00.0") == "10000:01:00.0");
  for (const char* text : {"", "3b:00.0", "0000:3b", "0000:3b:0", "0000:3b:00.", "0000:3b:00.0x",
                           "0000:3b:00.g", "000000000:3b:00.0", "0000-3b-00.0", "0000:3b:00 "}) {
    CAPTURE(text);
    CHECK(pci_address(text).empty());
  }
}
