/* SPDX-License-Identifier: MIT */
/* Owns the terminal's state; must not know where the numbers of a frame come from. */
#include "tools/view.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static const char enter[] = "\x1b[?1049h\x1b[?25l\x1b[2J";
static const char leave[] = "\x1b[0m\x1b[?25h\x1b[?1049l";

#define BOLD "\x1b[1m"
#define DIM "\x1b[2m"
#define RED "\x1b[31m"
#define GREEN "\x1b[32m"
#define YELLOW "\x1b[33m"
#define PLAIN "\x1b[0m"

static struct {
    int in, out, open;
    int colour;
    pid_t owner;
    struct termios before;
} terminal;

static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

static void restore_terminal(void)
{
    /* both are async-signal-safe */
    if (write(terminal.out, leave, sizeof leave - 1) < 0) {
        /* the terminal is gone: nobody to tell */
    }
    tcsetattr(terminal.in, TCSANOW, &terminal.before);
}

/* A forked child inherits the handler, but not the terminal. */
static void on_crash(int signal_number)
{
    if (terminal.owner == getpid()) {
        restore_terminal();
    }
    raise(signal_number); /* its default again: SA_RESETHAND */
}

int view_open(int in, int out)
{
    if (!isatty(in) || !isatty(out) || tcgetattr(in, &terminal.before) != 0) {
        return -1;
    }
    terminal.in = in;
    terminal.out = out;
    terminal.owner = getpid();
    const char *no_colour = getenv("NO_COLOR");
    terminal.colour = !no_colour || !no_colour[0];
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) {
        sigaction(crashes[i], &action, NULL);
    }
    struct termios raw = terminal.before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped parent would leave its workers waiting with full rings */
    if (tcsetattr(in, TCSANOW, &raw) != 0 || write(out, enter, sizeof enter - 1) < 0) {
        tcsetattr(in, TCSANOW, &terminal.before);
        return -1;
    }
    terminal.open = 1;
    return 0;
}

void view_close(void)
{
    if (terminal.open) {
        restore_terminal();
        terminal.open = 0;
        for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) {
            signal(crashes[i], SIG_DFL);
        }
    }
}

/* ---- a screen is built in one buffer and written at once: no flicker --------------------------------------------- */

struct canvas {
    char text[16384];
    size_t used;
    int line, lines;
};

static void put(struct canvas *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct canvas *c, const char *format, ...)
{
    size_t room = sizeof c->text - c->used;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(c->text + c->used, room, format, args);
    va_end(args);
    if (n > 0) {
        c->used += (size_t)n < room ? (size_t)n : room - 1;
    }
}

static const char *paint(const char *sequence)
{
    return terminal.colour || sequence[2] < '3' ? sequence : ""; /* bold and dim are no colours */
}

static void end_line(struct canvas *c)
{
    put(c, PLAIN "\x1b[K");
    if (++c->line < c->lines) {
        put(c, "\r\n");
    }
}

/* A bar of `width` cells, full at `whole`; what lies above `mark` is drawn in red. */
static void put_bar(struct canvas *c, double value, double mark, double whole, int width)
{
    int filled = whole > 0 && value > 0 ? (int)(value / whole * width + 0.5) : 0;
    int limit = whole > 0 && mark < whole ? (int)(mark / whole * width + 0.5) : width;
    put(c, "%s", paint(GREEN));
    for (int i = 0; i < width; i++) {
        if (i == limit) {
            put(c, "%s", paint(RED));
        }
        put(c, "%c", i < filled ? '#' : i == limit ? '|' : '.');
    }
    put(c, PLAIN);
}

static void put_row(struct canvas *c, const char *name, const struct view_row *row, double limit, double whole,
                    int syncs)
{
    put(c, " %-8s ", name);
    put_bar(c, row->admitted, limit, whole, 24);
    put(c, " %9.0f  %9.0f", row->admitted, row->denied);
    if (!syncs) {
        put(c, "         -");
    } else if (row->sync_age < 0) {
        put(c, "     never");
    } else {
        put(c, "%s %6.0f ms" PLAIN, row->sync_age > 0.5 ? paint(YELLOW) : "", row->sync_age * 1e3);
    }
    if (row->degraded > 0) {
        put(c, "  %sdegraded" PLAIN, paint(YELLOW));
    } else if (syncs && !row->store_up) {
        put(c, "  %sno link" PLAIN, paint(YELLOW));
    }
    end_line(c);
}

static void put_head(struct canvas *c, const struct view_frame *f)
{
    put(c, BOLD " weir demo" PLAIN "   limit %s, burst %llu, %u processes, " BOLD "%s" PLAIN ", %.1f s", f->limit,
        (unsigned long long)f->burst, f->processes, f->mode, f->seconds);
    end_line(c);
    if (f->redis) {
        const char *colour = strcmp(f->redis, "up") == 0 ? GREEN : RED;
        put(c, "             redis-server %s%s" PLAIN, paint(colour), f->redis);
        if (f->redis_pid > 0) {
            put(c, DIM " (pid %ld)", f->redis_pid);
        }
    } else {
        put(c, "             no Redis: each process enforces its own part of the limit");
    }
    end_line(c);
}

static void put_totals(struct canvas *c, const struct view_frame *f)
{
    put(c, " admitted   %llu, of %.0f that one perfect bucket would have admitted (%.1f %%)",
        (unsigned long long)f->admitted, f->perfect, f->perfect > 0 ? 100 * (double)f->admitted / f->perfect : 0);
    end_line(c);
    put(c, " denied     %llu", (unsigned long long)f->denied);
    end_line(c);
    put(c, " overshoot  %s%.1f" PLAIN " tokens in the worst window so far, %.1f allowed",
        f->overshoot > f->bound ? paint(RED) : "", f->overshoot, f->bound);
    end_line(c);
    put(c, " degraded   %llu" DIM " decisions by the outage policy", (unsigned long long)f->degraded);
    end_line(c);
}

void view_draw(const struct view_frame *f)
{
    static struct canvas c;
    struct winsize size = {0};
    c.used = 0;
    c.line = 0;
    c.lines = ioctl(terminal.out, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
    int rows = c.lines - 14 < (int)f->processes ? (c.lines > 15 ? c.lines - 15 : 1) : (int)f->processes;
    put(&c, "\x1b[H");
    put_head(&c, f);
    end_line(&c);
    put(&c, DIM " process  %-24s%11s %10s %10s", "", "admitted/s", "denied/s", "sync age");
    end_line(&c);
    double share = f->limit_per_s / f->processes;
    for (int i = 0; i < rows; i++) {
        char name[12];
        snprintf(name, sizeof name, "%d", i + 1);
        put_row(&c, name, &f->rows[i], 2 * share, 2 * share, f->redis != NULL);
    }
    if (rows < (int)f->processes) {
        put(&c, DIM " %u more", f->processes - (unsigned)rows);
        end_line(&c);
    }
    put_row(&c, "all", &f->all, f->limit_per_s, 1.25 * f->limit_per_s, f->redis != NULL);
    end_line(&c);
    put_totals(&c, f);
    end_line(&c);
    for (int i = 0; i < VIEW_EVENTS && c.line < c.lines - 1; i++) {
        put(&c, DIM " %s", f->events[i] ? f->events[i] : "");
        end_line(&c);
    }
    if (f->redis) {
        put(&c,
            BOLD " k" PLAIN " kill redis   " BOLD "r" PLAIN " start it again   " BOLD "s" PLAIN " hybrid or strict   ");
    }
    put(&c, BOLD " q" PLAIN " quit\x1b[K\x1b[J");
    if (write(terminal.out, c.text, c.used) < 0) {
        /* the terminal is gone: SIGHUP ends the run */
    }
}

int view_line(const struct view_frame *f, char *out, size_t size)
{
    int n = snprintf(out, size, "%6.1f s  %-6s  redis %-6s  admitted %.0f/s  denied %.0f/s  overshoot %.1f of %.1f",
                     f->seconds, f->mode, f->redis ? f->redis : "unused", f->all.admitted, f->all.denied, f->overshoot,
                     f->bound);
    if (n > 0 && (size_t)n < size && f->redis && f->all.sync_age >= 0) {
        n += snprintf(out + n, size - (size_t)n, "  sync age %.0f ms", f->all.sync_age * 1e3);
    }
    if (n > 0 && (size_t)n < size && f->all.degraded > 0) {
        n += snprintf(out + n, size - (size_t)n, "  degraded %.0f/s", f->all.degraded);
    }
    return n;
}
