// Child processes of tests: started without a shell, killed with the object and with the test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sortie::testing {

/// Runs to the end; stdout and stderr together. `code` is the exit code, 128 + signal, or 127.
struct Finished {
  int code = 127;
  std::string output;
};
Finished run(const std::vector<std::string>& argv);

/// Writes `text` to a file with this mode.
void write_text(const std::string& path, const std::string& text, int mode = 0600);
std::string read_text(const std::string& path);

class Child {
 public:
  Child() = default;
  /// stdout and stderr go to `log`.
  Child(const std::vector<std::string>& argv, const std::string& log);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();
  pid_t pid() const { return pid_; }
  bool running();
  void stop();

 private:
  pid_t pid_ = -1;
};

}  // namespace sortie::testing
