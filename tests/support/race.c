/* One thread makes names, the other flips the name in memory between a harmless and a guarded one. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static char name[64] = "xenvrc";
static volatile int stop;
static void *flip(void *unused) {
    while (!stop) { ((volatile char *)name)[0] = '.'; ((volatile char *)name)[0] = 'x'; }
    return unused;
}
int main(int count, char **words) {
    pthread_t thread;
    int made = 0, guarded = 0, refused = 0;
    if (count < 2 || chdir(words[1])) return 9;
    pthread_create(&thread, 0, flip, 0);
    /* Until the harmless name is made often enough, and where both can be until they are, however the two threads
       share processors. */
    for (int i = 0; i < 4000 || ((made <= 100 || (count > 2 && !guarded)) && i < 2000000); i++) {
        int fd = open(name, O_CREAT | O_WRONLY, 0644);
        if (fd >= 0) close(fd); else refused++;
        mkdir(name, 0755); symlink("x", name); rename("xenvrc", name);
        struct stat found;
        if (!lstat("xenvrc", &found)) { made++; S_ISDIR(found.st_mode) ? rmdir("xenvrc") : unlink("xenvrc"); }
        if (!lstat(".envrc", &found)) { guarded++; S_ISDIR(found.st_mode) ? rmdir(".envrc") : unlink(".envrc"); }
    }
    stop = 1; pthread_join(thread, 0);
    printf("%s %s\n", made > 100 ? "made" : "none", guarded ? "GUARDED" : "clean");
    return 0;
}
