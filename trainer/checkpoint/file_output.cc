#include "trainer/checkpoint/file_output.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {

void FileOutput::Free::operator()(std::byte* bytes) const {
  std::free(bytes);
}

Result<FileOutput> FileOutput::create(const std::filesystem::path& path, Caching caching) {
  SORTIE_ASSIGN_OR_RETURN(Fd file, file_ops::create_file(path));
  FileOutput output(std::move(file), path);
  if (caching == Caching::bypassed && file_ops::set_direct(output.file_, true)) {
    output.buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBufferBytes)));
    if (!output.buffer_) (void)file_ops::set_direct(output.file_, false);
  }
  return output;
}

Result<> FileOutput::write(std::span<const std::byte> bytes) {
  if (!buffer_) {
    SORTIE_TRY(file_ops::write_all(file_, bytes, path_));
    // Makes the disk start on it at once. Only a hint: the fsync at the end is what counts.
    ::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    return {};
  }
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), kBufferBytes - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), size);
    filled_ += size;
    bytes = bytes.subspan(size);
    if (filled_ == kBufferBytes) SORTIE_TRY(write_buffer());
  }
  return {};
}

Result<> FileOutput::write_buffer() {
  SORTIE_TRY(file_ops::write_all(file_, {buffer_.get(), filled_}, path_));
  filled_ = 0;
  return {};
}

Result<> FileOutput::finish() {
  if (filled_ > 0) {
    // The end of a file is rarely a whole block.
    (void)file_ops::set_direct(file_, false);
    SORTIE_TRY(write_buffer());
  }
  SORTIE_TRY(file_ops::sync_file(file_, path_));
  return file_ops::close_file(std::move(file_), path_);
}

}  // namespace sortie::trainer
