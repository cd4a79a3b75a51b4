/* Preloaded: SIGKILL at the KILL_COUNT-th write to a file whose path contains KILL_FILE, after half of its bytes.

Build: gcc -shared -fPIC -o kill_write.so kill_write.c. KILL_LOG: a file that gets the path of every write below
KILL_FOLDER. The variables are read at each write, so a forked process can set its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int matches;

/* Whether the process dies at this write. */
static int is_last(int fd) {
  const char *folder = getenv("KILL_FOLDER");
  const char *log = getenv("KILL_LOG");
  const char *file = getenv("KILL_FILE");
  const char *count = getenv("KILL_COUNT");
  char link[64], path[4096];
  if (!folder) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 2);
  if (length <= 0) return 0;
  path[length] = 0;
  if (strncmp(path, folder, strlen(folder))) return 0;
  if (log) {
    int to = open(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
    path[length] = '\n';
    syscall(SYS_write, to, path, length + 1);
    path[length] = 0;
    close(to);
  }
  if (!file || !strstr(path, file)) return 0;
  return __atomic_add_fetch(&matches, 1, __ATOMIC_SEQ_CST) == (count ? atoi(count) : 1);
}

ssize_t write(int fd, const void *bytes, size_t size) {
  if (is_last(fd)) {
    syscall(SYS_write, fd, bytes, size / 2);
    raise(SIGKILL);
  }
  return syscall(SYS_write, fd, bytes, size);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
  if (is_last(fd)) {
    syscall(SYS_pwrite64, fd, bytes, size / 2, offset);
    raise(SIGKILL);
  }
  return syscall(SYS_pwrite64, fd, bytes, size, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) { return pwrite(fd, bytes, size, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (is_last(fd)) {
    syscall(SYS_writev, fd, parts, count / 2);
    raise(SIGKILL);
  }
  return syscall(SYS_writev, fd, parts, count);
}
