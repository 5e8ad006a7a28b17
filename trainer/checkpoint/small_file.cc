#include "trainer/checkpoint/small_file.h"

#include <span>

#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {

Result<> write_small_file(const std::filesystem::path& path, std::string_view text) {
  SORTIE_ASSIGN_OR_RETURN(Fd file, file_ops::create_file(path));
  SORTIE_TRY(file_ops::write_all(file, std::as_bytes(std::span(text.data(), text.size())), path));
  SORTIE_TRY(file_ops::sync_file(file, path));
  return file_ops::close_file(std::move(file), path);
}

}  // namespace sortie::trainer
