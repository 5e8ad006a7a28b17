#include "tests/support/docker_engine.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace sortie::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kHint = "; install it: scripts/setup --containers";

void exec_program(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

void copy_program(const fs::path& from, const fs::path& to) {
  if (!fs::exists(from)) throw std::runtime_error(from.string() + ": missing" + kHint);
  fs::create_directories(to.parent_path());
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}

}  // namespace

Ran run_program(const std::vector<std::string>& argv) {
  int output[2];
  if (::pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(output[1], 1);
    ::dup2(output[1], 2);
    exec_program(argv);
  }
  ::close(output[1]);
  Ran ran;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(output[0], buffer, sizeof buffer)) > 0)
    ran.output.append(buffer, static_cast<std::size_t>(count));
  ::close(output[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (ran.output.ends_with('\n')) ran.output.pop_back();
  return ran;
}

DockerEngine& DockerEngine::get() {
  static DockerEngine engine;
  return engine;
}

DockerEngine::DockerEngine()
    : folder_("/tmp/sortie-docker-" + std::to_string(::getpid())), socket_(folder_ + "/sock") {
  for (const char* program : {"dockerd", "docker"})
    if (run_program({program, "--version"}).code != 0)
      throw std::runtime_error(std::string(program) + " is not here" + kHint);
  if (::geteuid() != 0) throw std::runtime_error("a test with dockerd needs root");
  fs::create_directories(folder_);
  ::setenv("DOCKER_HOST", ("unix://" + socket_).c_str(), 1);
  start();
  make_images();
}

DockerEngine::~DockerEngine() {
  stop(SIGTERM);
  // dockerd bind-mounts its data folder, and a killed one has not undone that.
  run_program(
      {"sh", "-c",
       "umount -l " + folder_ + "/*/netns/* " + folder_ + "/data 2>/dev/null; rm -rf " + folder_});
}

void DockerEngine::start() {
  const std::string log = folder_ + "/log";
  fs::remove(folder_ + "/pid");  // left by a killed dockerd and its containerd
  fs::remove(folder_ + "/exec/containerd/containerd.pid");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
    exec_program({"dockerd", "--data-root", folder_ + "/data", "--exec-root", folder_ + "/exec",
                  "--pidfile", folder_ + "/pid", "--host", "unix://" + socket_, "--iptables=false",
                  "--ip6tables=false", "--bridge=none", "--ip-forward=false", "--ip-masq=false",
                  "--shutdown-timeout", "5"});
  }
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (run_program({"docker", "version"}).code != 0) {
    if (Clock::now() > deadline) throw std::runtime_error("dockerd does not come up; see " + log);
    std::this_thread::sleep_for(milliseconds(50));
  }
}

void DockerEngine::stop(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void DockerEngine::make_images() const {
  const fs::path root = folder_ + "/root";
  for (const char* folder : {"etc", "tmp", "home/image", "opt/tools", "proc", "sys", "dev"})
    fs::create_directories(root / folder);
  fs::permissions(root / "tmp", static_cast<fs::perms>(01777));
  fs::permissions(root / "home/image", static_cast<fs::perms>(0777));
  copy_program("/bin/busybox", root / "bin/busybox");
  for (const char* name : {"sh", "cat", "echo", "sleep", "ls", "id", "dd", "head", "tail", "test",
                           "pwd", "kill", "true", "seq", "touch", "stat"})
    fs::create_symlink("busybox", root / "bin" / name);
  copy_program(SORTIE_STATIC_RANK_HELPER, root / "bin/rank-helper");
  std::ofstream(root / "opt/tools/broken") << "#!/no/such/interpreter\n";
  fs::permissions(root / "opt/tools/broken", static_cast<fs::perms>(0755));
  std::ofstream(root / "opt/tools/plain") << "not to be run\n";
  std::ofstream(root / "etc/passwd")
      << "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/image:/bin/sh\n";
  const std::string make =
      "set -e; tar -C " + root.string() + " -cf " + folder_ + "/root.tar .; docker import " +
      "--change 'WORKDIR /home/image' --change \"ENV FROM_IMAGE=\\\"a 'b'\\\"\" " +
      "--change 'ENV PATH=/opt/tools:/bin' " + folder_ + "/root.tar " + kImage +
      "; docker import " +
      "--change 'ENV PATH=/opt/tools:/bin' --change 'ENTRYPOINT [\"/bin/rank-helper\"]' " +
      folder_ + "/root.tar " + kEntryImage;
  if (const Ran made = run_program({"sh", "-c", make}); made.code != 0)
    throw std::runtime_error("no image: " + made.output);
}

std::string DockerEngine::run(const std::vector<std::string>& args) const {
  std::vector<std::string> argv = {"docker"};
  argv.insert(argv.end(), args.begin(), args.end());
  return run_program(argv).output;
}

std::string DockerEngine::containers() const {
  return run({"ps", "--all", "--filter", "label=sortie.run", "--format", "{{.Names}} {{.Status}}"});
}

std::string DockerEngine::containers_left() const {
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  std::string left;
  while (!(left = containers()).empty() && Clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(50));
  return left;
}

std::string DockerEngine::image_id(const std::string& image) const {
  return run({"image", "inspect", "--format", "{{.Id}}", image});
}

}  // namespace sortie::test
