/* A small HTTP/1.1 load generator: one thread, epoll, keep-alive, one request in flight on each connection.
 *
 * It knows no protocol: standard input says what to send. Each step of that plan is
 *
 *     setup|loop|teardown REPEAT keep|new|take LENGTH
 *     a complete HTTP request of LENGTH bytes
 *
 * Every connection goes through the setup steps once, through the loop steps again and again, and through the
 * teardown steps once. No connection starts a phase before all have ended the one before, and a pass through the loop
 * that has begun is always ended. So the server's CPU time over the loop belongs to whole passes and to nothing else.
 *
 * The connection's id replaces HOLE in a request. It has one from the beginning; a `new` step makes a fresh one, so a
 * loop that begins with one plays a whole session in each pass; a `take` step reads the id from the first `data:` line
 * of its answer. The last cookie that the connection received replaces COOKIE.
 *
 * Any answer that is not 2xx, and any connection that the server drops, ends the run: numbers of a run with errors
 * would mean nothing. Otherwise the result is one line of JSON.
 *
 *     loadgen PORT SERVER_PID CONNECTIONS SECONDS PASSES < plan
 *
 * No pass begins after SECONDS, nor when PASSES have begun; 0 means no such limit.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HOLE "{the-id-of-a-session-goes-in-here--}"
#define ID_LENGTH (sizeof HOLE - 1)
#define COOKIE "{the-name-of-a-node-as-its-cookie-has-it-after-node_id=-is-here}"
#define COOKIE_LENGTH (sizeof COOKIE - 1)
#define MAX_STEPS 16
#define MAX_HOLES 2048
#define PATIENCE_MS 60000

enum phase { SETUP, LOOP, TEARDOWN };
enum id_rule { KEEP, NEW, TAKE };

struct step {
    enum phase phase;
    enum id_rule id;
    int repeat;
    char *request;
    size_t length;
    size_t holes[MAX_HOLES];
    int hole_count;
    char *cookie; /* its place in the request; NULL if there is none */
};

struct answer {
    enum { HEAD, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER } part;
    char head[8192];
    size_t head_length;
    int status;
    bool closes;
    size_t left; /* bytes of this body or chunk that are still to come */
    char line[32];
    size_t line_length;
    char start[512]; /* of the body: enough for an id, or for an error message */
    size_t start_length;
};

struct connection {
    int fd;
    int step;
    int sent; /* how often this step has been sent in a row */
    bool waits_to_write;
    char id[ID_LENGTH + 1];
    char cookie[COOKIE_LENGTH + 1];
    char *out;
    size_t out_done;
    double pass_began;
    struct answer answer;
};

static struct step steps[MAX_STEPS];
static int step_count;
static struct connection *connections;
static int connection_count, port, server_pid;
static int epoll_fd;

static int busy; /* connections that have not finished the current phase */
static double stop_at;
static long most_passes, passes_begun, requests, reconnects;
static unsigned long long bytes_in;

static double *passes; /* how many seconds each took */
static size_t pass_count, pass_room;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "loadgen: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- What it costs ---- */

static double own_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static size_t read_file(const char *path, char *buffer, size_t room) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0; /* the process or thread has ended */
    ssize_t n = read(fd, buffer, room - 1);
    close(fd);
    buffer[n > 0 ? n : 0] = 0;
    return n > 0 ? n : 0;
}

/* User and system seconds of a process, of its descendants, and of those that it has already waited for. */
static void add_tree_cpu(int pid, double *user, double *system) {
    char path[128], text[4096];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!read_file(path, text, sizeof text)) return;
    unsigned long own_user, own_system;
    long children_user, children_system;
    /* The name of the program may contain anything: the fixed fields begin after its closing parenthesis. */
    sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &own_user,
           &own_system, &children_user, &children_system);
    double ticks = sysconf(_SC_CLK_TCK);
    *user += (own_user + children_user) / ticks;
    *system += (own_system + children_system) / ticks;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (!threads) return;
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", pid, thread->d_name);
        if (!read_file(path, text, sizeof text)) continue;
        for (char *rest, *child = strtok_r(text, " ", &rest); child; child = strtok_r(NULL, " ", &rest))
            add_tree_cpu(atoi(child), user, system);
    }
    closedir(threads);
}

/* ---- The plan ---- */

static void read_plan(void) {
    char phase[16], id[16];
    size_t length;
    int repeat;
    while (scanf("%15s %d %15s %zu", phase, &repeat, id, &length) == 4) {
        if (step_count == MAX_STEPS) die("a plan has at most %d steps", MAX_STEPS);
        getchar(); /* the end of the line */
        struct step *s = &steps[step_count++];
        s->phase = phase[0] == 's' ? SETUP : phase[0] == 'l' ? LOOP : TEARDOWN;
        s->id = id[0] == 'n' ? NEW : id[0] == 't' ? TAKE : KEEP;
        s->repeat = repeat;
        s->length = length;
        s->request = malloc(length + 1);
        if (fread(s->request, 1, length, stdin) != length) die("the plan ends in the middle of a request");
        s->request[length] = 0;
        for (char *hole = s->request; (hole = strstr(hole, HOLE)); hole += ID_LENGTH) {
            if (s->hole_count == MAX_HOLES) die("a request has at most %d holes", MAX_HOLES);
            s->holes[s->hole_count++] = hole - s->request;
        }
        s->cookie = strstr(s->request, COOKIE);
    }
    if (!step_count) die("there is no plan on standard input");
}

static int first_step(enum phase phase) {
    int i = 0;
    while (i < step_count && steps[i].phase < phase) i++;
    return i;
}

/* ---- Sending ---- */

static void listen_for(struct connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->waits_to_write ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, operation, c->fd, &event);
}

static void connect_to_server(struct connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) die("connect: %s", strerror(errno));
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->waits_to_write = false;
    listen_for(c, EPOLL_CTL_ADD);
}

static void write_out(struct connection *c) {
    struct step *s = &steps[c->step];
    while (c->out_done < s->length) {
        ssize_t n = write(c->fd, c->out + c->out_done, s->length - c->out_done);
        if (n > 0) {
            c->out_done += n;
        } else if (n < 0 && errno == EAGAIN) {
            c->waits_to_write = true;
            listen_for(c, EPOLL_CTL_MOD);
            return;
        } else {
            return; /* the server hung up: the next read reports it */
        }
    }
    if (c->waits_to_write) {
        c->waits_to_write = false;
        listen_for(c, EPOLL_CTL_MOD);
    }
}

static void make_id(char *id) {
    static unsigned long count;
    static unsigned run;
    if (!run) run = (unsigned)getpid() * 2654435761u ^ (unsigned)time(NULL);
    snprintf(id, ID_LENGTH + 1, "%08x-0000-4000-8000-%012lx", run, ++count);
}

static void send_request(struct connection *c) {
    struct step *s = &steps[c->step];
    if (s->id == NEW) make_id(c->id);
    memcpy(c->out, s->request, s->length);
    for (int i = 0; i < s->hole_count; i++) memcpy(c->out + s->holes[i], c->id, ID_LENGTH);
    if (s->cookie && *c->cookie) memcpy(c->out + (s->cookie - s->request), c->cookie, COOKIE_LENGTH);
    c->out_done = 0;
    c->sent++;
    c->answer.part = HEAD;
    c->answer.head_length = c->answer.start_length = c->answer.line_length = 0;
    c->answer.closes = false;
    write_out(c);
}

/* ---- Reading ---- */

static void read_head(struct connection *c) {
    struct answer *a = &c->answer;
    bool chunked = false, sized = false;
    a->status = atoi(a->head + sizeof "HTTP/1.1");
    for (char *line = strstr(a->head, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n")) {
        char *value = strchr(line, ':') + 1;
        while (*value == ' ') value++;
        if (!strncasecmp(line + 2, "content-length:", 15)) {
            sized = true;
            a->left = strtoul(value, NULL, 10);
        } else if (!strncasecmp(line + 2, "transfer-encoding:", 18)) {
            chunked = true;
        } else if (!strncasecmp(line + 2, "connection:", 11)) {
            a->closes = !strncasecmp(value, "close", 5);
        } else if (!strncasecmp(line + 2, "set-cookie:", 11)) {
            sscanf(value, "node_id=%64[0-9a-f]", c->cookie);
        }
    }
    if (!chunked && !sized) die("an answer without a length to %.80s", steps[c->step].request);
    a->part = chunked ? CHUNK_SIZE : BODY;
}

/* Take what belongs to the body or chunk, and remember how the body starts. */
static size_t take_body(struct answer *a, const char *data, size_t n) {
    if (n > a->left) n = a->left;
    size_t keep = sizeof a->start - a->start_length;
    if (keep > n) keep = n;
    memcpy(a->start + a->start_length, data, keep);
    a->start_length += keep;
    a->left -= n;
    return n;
}

/* Digest received bytes; tell whether the answer is complete. */
static bool digest(struct connection *c, const char *data, size_t n) {
    struct answer *a = &c->answer;
    while (n > 0 || (a->part == BODY && a->left == 0)) {
        size_t used = 1;
        switch (a->part) {
        case HEAD: {
            size_t before = a->head_length;
            used = sizeof a->head - 1 - before;
            if (used > n) used = n;
            if (!used) die("an answer with a head of more than %zu bytes", sizeof a->head);
            memcpy(a->head + before, data, used);
            a->head[a->head_length += used] = 0;
            char *end = strstr(a->head + (before > 3 ? before - 3 : 0), "\r\n\r\n");
            if (end) {
                used = end + 4 - a->head - before;
                read_head(c);
            }
            break;
        }
        case BODY:
            used = take_body(a, data, n);
            if (!a->left) return true;
            break;
        case CHUNK:
            used = take_body(a, data, n);
            if (!a->left) a->part = CHUNK_END;
            break;
        case CHUNK_END:
            if (*data == '\n') a->part = CHUNK_SIZE;
            break;
        case CHUNK_SIZE:
            if (*data != '\n') {
                if (a->line_length < sizeof a->line - 1) a->line[a->line_length++] = *data;
                break;
            }
            a->line[a->line_length] = 0;
            a->left = strtoul(a->line, NULL, 16);
            a->line_length = 0;
            a->part = a->left ? CHUNK : TRAILER;
            break;
        case TRAILER:
            if (*data == '\n' && !a->line_length) return true;
            a->line_length = *data == '\n' ? 0 : a->line_length + (*data != '\r');
            break;
        }
        data += used;
        n -= used;
    }
    return false;
}

static void take_id(struct connection *c) {
    struct answer *a = &c->answer;
    char *found = memmem(a->start, a->start_length, "data:", 5);
    if (!found) die("no id in the answer to %.80s", steps[c->step].request);
    for (found += 5; *found == ' ';) found++;
    if (found + ID_LENGTH > a->start + a->start_length) die("the id in an answer is too short");
    memcpy(c->id, found, ID_LENGTH);
}

/* ---- From one request to the next ---- */

static void pass_ended(struct connection *c) {
    if (pass_count == pass_room) {
        pass_room = pass_room ? 2 * pass_room : 1 << 16;
        passes = realloc(passes, pass_room * sizeof *passes);
    }
    passes[pass_count++] = now() - c->pass_began;
}

static void begin_step(struct connection *c, int step) {
    c->step = step;
    c->sent = 0;
    send_request(c);
}

static void begin_pass(struct connection *c) {
    c->pass_began = now();
    if ((most_passes && passes_begun >= most_passes) || c->pass_began >= stop_at) {
        busy--;
        return;
    }
    passes_begun++;
    begin_step(c, first_step(LOOP));
}

static void go_on(struct connection *c) {
    struct step *s = &steps[c->step];
    if (c->sent < s->repeat) {
        send_request(c);
    } else if (c->step + 1 < step_count && steps[c->step + 1].phase == s->phase) {
        begin_step(c, c->step + 1);
    } else if (s->phase == LOOP) {
        pass_ended(c);
        begin_pass(c);
    } else {
        busy--;
    }
}

static void answered(struct connection *c) {
    struct answer *a = &c->answer;
    if (a->status < 200 || a->status > 299)
        die("%d for %.*s: %.*s", a->status, (int)strcspn(steps[c->step].request, "\r"), steps[c->step].request,
            (int)a->start_length, a->start);
    if (steps[c->step].phase == LOOP) requests++;
    if (steps[c->step].id == TAKE) take_id(c);
    if (a->closes) {
        close(c->fd);
        connect_to_server(c);
        reconnects++;
    }
    go_on(c);
}

static void receive(struct connection *c) {
    static char buffer[1 << 18];
    ssize_t n = read(c->fd, buffer, sizeof buffer);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0)
        die("the server closed the connection in %.*s", (int)strcspn(steps[c->step].request, "\r"),
            steps[c->step].request);
    bytes_in += n;
    if (digest(c, buffer, n)) answered(c);
}

static void run_phase(enum phase phase) {
    int step = first_step(phase);
    if (step == step_count || steps[step].phase != phase) return;
    busy = connection_count;
    for (int i = 0; i < connection_count; i++) {
        if (phase == LOOP)
            begin_pass(&connections[i]);
        else
            begin_step(&connections[i], step);
    }
    while (busy > 0) {
        struct epoll_event events[512];
        int n = epoll_wait(epoll_fd, events, 512, PATIENCE_MS);
        if (!n) die("the server has not answered for %d s", PATIENCE_MS / 1000);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) write_out(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
}

static int compare(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static double quantile(double q) {
    return pass_count ? passes[(size_t)(q * (pass_count - 1))] : 0;
}

int main(int argc, char **argv) {
    if (argc != 6) die("usage: loadgen PORT SERVER_PID CONNECTIONS SECONDS PASSES < plan");
    port = atoi(argv[1]);
    server_pid = atoi(argv[2]);
    connection_count = atoi(argv[3]);
    double seconds = atof(argv[4]);
    most_passes = atol(argv[5]);
    read_plan();

    epoll_fd = epoll_create1(0);
    connections = calloc(connection_count, sizeof *connections);
    size_t longest = 0;
    for (int i = 0; i < step_count; i++) longest = steps[i].length > longest ? steps[i].length : longest;
    for (int i = 0; i < connection_count; i++) {
        connections[i].out = malloc(longest);
        make_id(connections[i].id);
        connect_to_server(&connections[i]);
    }

    run_phase(SETUP);
    double user_before = 0, system_before = 0, user = 0, system = 0;
    add_tree_cpu(server_pid, &user_before, &system_before);
    double own_before = own_cpu(), began = now();
    unsigned long long bytes_before = bytes_in;
    stop_at = seconds ? began + seconds : 1e300;
    run_phase(LOOP);
    double took = now() - began, own = own_cpu() - own_before;
    unsigned long long bytes = bytes_in - bytes_before;
    add_tree_cpu(server_pid, &user, &system);
    run_phase(TEARDOWN);

    qsort(passes, pass_count, sizeof *passes, compare);
    printf("{\"seconds\": %.6f, \"passes\": %zu, \"requests\": %ld, \"p50\": %.9f, \"p99\": %.9f, \"bytes\": %llu, "
           "\"server_user\": %.2f, \"server_system\": %.2f, \"own_cpu\": %.6f, \"reconnects\": %ld}\n",
           took, pass_count, requests, quantile(0.5), quantile(0.99), bytes, user - user_before,
           system - system_before, own, reconnects);
    return 0;
}
