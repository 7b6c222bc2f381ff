/* A PKCS#11 module that stands before another one, fails as a script says, and
 * keeps books on what it was asked.
 *
 *     cc -shared -fPIC -O2 -Wall -Wextra -Werror -o faultmodule.so faultmodule.c -ldl -lpthread
 *
 * It finds its parameters in the file <its own path>.conf, or else in the
 * environment, so that several copies of it can live in one process:
 *
 *     module /path   SECSY_FAULT_MODULE   the module behind it
 *     script /path   SECSY_FAULT_SCRIPT   what it plays; none: nothing fails
 *     book /path     SECSY_FAULT_BOOK     where it counts; made by the reader
 *
 * The script is looked at in each call, and read when the file is another one
 * (inode, size or time). Replace it by rename, so that none is read half. A line
 * is a comment (#), a setting, or a rule; "@label" before a setting or a rule
 * makes it one of that token alone:
 *
 *     C_Sign 5 return 0x30            the 5th call since the script was read
 *     C_Sign 3- return 0xB3           from the 3rd on
 *     C_OpenSession 1-3 return 0x30
 *     C_Sign * delay 2000us           each call takes that much longer (us, ms, s)
 *     C_Sign 2 after return 0x30      the call is made, then denied: it did sign
 *     C_Sign 1 hang                   until the script has that line no more
 *     C_Sign 1 after hang             it signs, and then does not return
 *     C_Sign * corrupt                a bit of what it returns is wrong
 *     C_Sign * overlong               it says that it returned 2^40 bytes and more
 *     C_Sign 4 really return 0xB3     and it is true: see below
 *     * * p=0.01 seed=7 return 0x30   at random, the same way each time
 *     engines 8                       so many calls can be delayed at once
 *     @one token removed              pulled, for as long as the line is there
 *     @one token reset                restarted once, when the script is read
 *     @one token sessions 4           it has no more than that
 *     @one token flags 0x20000        set in CK_TOKEN_INFO besides its own
 *
 * All rules that fit are played: delays add up, the first return and the first
 * hang count. C_Sign and C_Decrypt are the calls that give a result; those that
 * only ask for its length are C_Sign?length and C_Decrypt?length. "*" is every
 * call that names a slot or a session, but none that asks for a length.
 *
 * A token that was removed or reset has lost its sessions and its login, and has
 * other handles for its objects. A call that a removal overtakes is told
 * DEVICE_REMOVED, a later one TOKEN_NOT_PRESENT. "really" makes the code true: the session is
 * gone (0xB3, 0xB0), all sessions are (0x32, 0xE0), nobody is logged in (0x101),
 * or the module is not initialized any more (0x190).
 *
 * A breach of the contract by the caller is a violation, in the book and on
 * stderr: two calls at once with one session, calls while or after C_Finalize, a
 * handle that the caller closed, C_Initialize twice or without
 * CKF_OS_LOCKING_OK, an operation begun twice, or used without a beginning. What
 * an injected fault made the caller believe is no breach.
 *
 * The function list of PKCS#11 2.x is a version (2 bytes, padded) and 68 pointers
 * in a fixed order, and all arguments are words but one, a CK_BBOOL, so no header
 * is needed on LP64 machines.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long U;
_Static_assert(sizeof(U) == 8 && sizeof(void *) == 8, "words are 64 bits");

/* X(index, name, number of arguments) */
#define FUNCTIONS(X) \
	X(0, C_Initialize, 1) X(1, C_Finalize, 1) X(2, C_GetInfo, 1) X(4, C_GetSlotList, 3) \
	X(5, C_GetSlotInfo, 2) X(6, C_GetTokenInfo, 2) X(7, C_GetMechanismList, 3) X(8, C_GetMechanismInfo, 3) \
	X(9, C_InitToken, 4) X(10, C_InitPIN, 3) X(11, C_SetPIN, 5) X(12, C_OpenSession, 5) \
	X(13, C_CloseSession, 1) X(14, C_CloseAllSessions, 1) X(15, C_GetSessionInfo, 2) X(16, C_GetOperationState, 3) \
	X(17, C_SetOperationState, 5) X(18, C_Login, 4) X(19, C_Logout, 1) X(20, C_CreateObject, 4) \
	X(21, C_CopyObject, 5) X(22, C_DestroyObject, 2) X(23, C_GetObjectSize, 3) X(24, C_GetAttributeValue, 4) \
	X(25, C_SetAttributeValue, 4) X(26, C_FindObjectsInit, 3) X(27, C_FindObjects, 4) X(28, C_FindObjectsFinal, 1) \
	X(29, C_EncryptInit, 3) X(30, C_Encrypt, 5) X(31, C_EncryptUpdate, 5) X(32, C_EncryptFinal, 3) \
	X(33, C_DecryptInit, 3) X(34, C_Decrypt, 5) X(35, C_DecryptUpdate, 5) X(36, C_DecryptFinal, 3) \
	X(37, C_DigestInit, 2) X(38, C_Digest, 5) X(39, C_DigestUpdate, 3) X(40, C_DigestKey, 2) \
	X(41, C_DigestFinal, 3) X(42, C_SignInit, 3) X(43, C_Sign, 5) X(44, C_SignUpdate, 3) \
	X(45, C_SignFinal, 3) X(46, C_SignRecoverInit, 3) X(47, C_SignRecover, 5) X(48, C_VerifyInit, 3) \
	X(49, C_Verify, 5) X(50, C_VerifyUpdate, 3) X(51, C_VerifyFinal, 3) X(52, C_VerifyRecoverInit, 3) \
	X(53, C_VerifyRecover, 5) X(54, C_DigestEncryptUpdate, 5) X(55, C_DecryptDigestUpdate, 5) X(56, C_SignEncryptUpdate, 5) \
	X(57, C_DecryptVerifyUpdate, 5) X(58, C_GenerateKey, 5) X(59, C_GenerateKeyPair, 8) X(60, C_WrapKey, 6) \
	X(61, C_UnwrapKey, 8) X(62, C_DeriveKey, 6) X(63, C_SeedRandom, 3) X(64, C_GenerateRandom, 3) \
	X(65, C_GetFunctionStatus, 1) X(66, C_CancelFunction, 1) X(67, C_WaitForSlotEvent, 3)

#define ENUM(i, name, n) name##_ = i,
enum { FUNCTIONS(ENUM) C_GetFunctionList_ = 3, SIGN_LENGTH = 68, DECRYPT_LENGTH = 69, NFUNCTIONS = 70 };
#define NAME(i, name, n) [i] = #name,
static const char *const names[NFUNCTIONS] = {
	FUNCTIONS(NAME)[C_GetFunctionList_] = "C_GetFunctionList", [SIGN_LENGTH] = "C_Sign?length", [DECRYPT_LENGTH] = "C_Decrypt?length"};

enum {
	OK = 0, GENERAL_ERROR = 0x05, DEVICE_REMOVED = 0x32, OBJECT_HANDLE_INVALID = 0x82, KEY_HANDLE_INVALID = 0x60, OPERATION_ACTIVE = 0x90,
	PIN_INCORRECT = 0xA0, SESSION_CLOSED = 0xB0, SESSION_COUNT = 0xB1, SESSION_HANDLE_INVALID = 0xB3, TOKEN_NOT_PRESENT = 0xE0,
	USER_NOT_LOGGED_IN = 0x101, BUFFER_TOO_SMALL = 0x150, NOT_INITIALIZED = 0x190, ALREADY_INITIALIZED = 0x191,
};

struct list {
	unsigned char version[2];
	void *f[68];
};
static struct list *real, mine;

/* ---- the book ---- */

#define TOKENS 64
#define RING (1 << 18)
struct book {
	uint64_t magic, calls, in_flight, peak_in_flight, open, peak_open, hung, initialized;
	uint64_t finalized, logins, wrong_pins, signatures, signed_next, violations, scripts, spare;
	char violation[256]; /* the first */
	struct {
		char name[32];
		uint64_t calls, injected;
	} function[NFUNCTIONS];
	struct {
		char label[32];
		uint64_t calls, open, peak_open, in_flight, peak_in_flight, logins, wrong_pins, signatures;
	} token[TOKENS];
	uint64_t signed_data[RING]; /* FNV-1a of what was signed, the last of them */
};
static struct book *book;

static uint64_t add(uint64_t *n, int64_t by) { return __atomic_add_fetch(n, (uint64_t)by, __ATOMIC_SEQ_CST); }
static void peak(uint64_t *most, uint64_t n)
{
	uint64_t old = __atomic_load_n(most, __ATOMIC_RELAXED);
	while (old < n && !__atomic_compare_exchange_n(most, &old, n, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

static void die(const char *format, ...)
{
	va_list a;
	va_start(a, format);
	fprintf(stderr, "faultmodule: ");
	vfprintf(stderr, format, a);
	fprintf(stderr, "\n");
	va_end(a);
	abort();
}

static void violation(const char *function, const char *what)
{
	fprintf(stderr, "faultmodule: violation: %s: %s\n", function, what);
	if (add(&book->violations, 1) == 1)
		snprintf(book->violation, sizeof book->violation, "%s: %s", function, what);
}

static void signed_data(const unsigned char *p, U n)
{
	uint64_t h = 14695981039346656037u;
	for (U i = 0; i < n; i++)
		h = (h ^ p[i]) * 1099511628211u;
	__atomic_store_n(&book->signed_data[(add(&book->signed_next, 1) - 1) % RING], h, __ATOMIC_SEQ_CST);
}

/* ---- tokens and sessions, as the caller knows them ---- */

struct token {
	char label[33];
	U slot, epoch, in_real;
	int removed, changing;
	U sessions, flags; /* of the script */
};
enum { FREE, OPEN, DEAD /* by the device */, CLOSED /* by the caller */ };
enum { FIND = 1, SIGN = 2, DECRYPT = 4 };
struct session {
	U real;
	struct token *token;
	unsigned char state, busy, active, excused; /* excused: closing it was denied */
};
enum { FIRST_SESSION = 0x1000, SESSIONS = 1 << 20 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards all of this; never held across a real call */
static pthread_cond_t quiet = PTHREAD_COND_INITIALIZER;
static struct token token[TOKENS];
static int ntoken;
static struct session session[SESSIONS];
static U nsession;
static enum { UNUSED, READY, FINALIZING, LOST } state; /* LOST: not initialized, and not by the caller's doing */
static int excuse_initialize;                          /* an injected fault may have told it to */

static struct token *token_of_slot(U slot)
{
	for (int i = 0; i < ntoken; i++)
		if (token[i].slot == slot)
			return &token[i];
	return NULL;
}

static int number(const struct token *t) { return (int)(t - token); }

static void end_session(struct session *s, int how)
{
	if (s->state == OPEN) {
		add(&book->open, -1);
		add(&book->token[number(s->token)].open, -1);
	}
	s->state = (unsigned char)how;
}

/* begin_real has the real module to itself and others, but nobody who is
 * changing the token. It fails if the session is gone by now. */
static U begin_real(struct session *s, struct token *t)
{
	U rv = OK;
	if (!t)
		return OK;
	pthread_mutex_lock(&mu);
	while (t->changing)
		pthread_cond_wait(&quiet, &mu);
	if (s && s->state != OPEN)
		rv = t->removed ? DEVICE_REMOVED : SESSION_HANDLE_INVALID;
	else if (!s && t->removed)
		rv = TOKEN_NOT_PRESENT;
	else
		t->in_real++;
	pthread_mutex_unlock(&mu);
	return rv;
}

static void end_real(struct token *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&mu);
	if (--t->in_real == 0)
		pthread_cond_broadcast(&quiet);
	pthread_mutex_unlock(&mu);
}

static U real1(int f, U a) { return ((U(*)(U))real->f[f])(a); }

/* lose makes a token lose its login, and its sessions if all is set, once no
 * call is in the real module. */
static void lose(struct token *t, int all)
{
	U one = 0;
	pthread_mutex_lock(&mu);
	while (t->changing)
		pthread_cond_wait(&quiet, &mu);
	t->changing = 1;
	for (U i = 0; i < nsession; i++)
		if (session[i].token == t && session[i].state == OPEN) {
			one = session[i].real;
			if (all)
				end_session(&session[i], DEAD);
		}
	if (all)
		t->epoch++;
	while (t->in_real > 0)
		pthread_cond_wait(&quiet, &mu);
	pthread_mutex_unlock(&mu);
	if (all)
		real1(C_CloseAllSessions_, t->slot);
	else if (one)
		real1(C_Logout_, one);
	pthread_mutex_lock(&mu);
	t->changing = 0;
	pthread_cond_broadcast(&quiet);
	pthread_mutex_unlock(&mu);
}

/* discover finds the tokens of the real module, and says how many are new. */
static int discover(void)
{
	U slots[256], n = 256;
	int found = 0;
	unsigned char info[512];
	if (((U(*)(U, void *, void *))real->f[C_GetSlotList_])(1, slots, &n) != OK)
		return 0;
	for (U i = 0; i < n; i++) {
		char label[33] = {0};
		U flags;
		int k;
		if (((U(*)(U, void *))real->f[C_GetTokenInfo_])(slots[i], info) != OK)
			continue;
		memcpy(&flags, info + 96, sizeof flags);
		if (!(flags & 0x400)) /* CKF_TOKEN_INITIALIZED */
			continue;
		memcpy(label, info, 32);
		for (k = 31; k >= 0 && label[k] == ' '; k--)
			label[k] = 0;
		pthread_mutex_lock(&mu);
		for (k = 0; k < ntoken && strcmp(token[k].label, label); k++)
			;
		if (k == ntoken && ntoken < TOKENS) {
			memcpy(token[k].label, label, sizeof label);
			memcpy(book->token[k].label, label, 32);
			ntoken++;
			found++;
		}
		if (k < ntoken)
			token[k].slot = slots[i];
		pthread_mutex_unlock(&mu);
	}
	return found;
}

/* ---- the script ---- */

struct rule {
	char text[256], label[33];
	int function; /* -1: all with a slot or session */
	uint64_t from, to, seed, count;
	double p;
	int after, really, hang, corrupt, overlong, returns;
	U code;
	long delay; /* ns */
};
enum { RULES = 256 };
struct script {
	int n;
	struct rule rule[RULES];
};
struct version {
	ino_t inode;
	off_t size;
	struct timespec time;
};

static char script_path[1024];
static struct script *script; /* read and replaced atomically; old ones are kept for those who still play them */
static struct version script_version;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t engines_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t engines_free = PTHREAD_COND_INITIALIZER;
static long engines, engines_busy; /* 0: any number */

static int same(const struct version *a, const struct version *b)
{
	return a->inode == b->inode && a->size == b->size && a->time.tv_sec == b->time.tv_sec && a->time.tv_nsec == b->time.tv_nsec;
}

static struct version version_of(const struct stat *st)
{
	struct version v = {st->st_ino, st->st_size, st->st_mtim};
	return v;
}

static uint64_t whole(const char *s, const char *line)
{
	char *end;
	errno = 0;
	uint64_t n = strtoull(s, &end, 0);
	if (errno || !*s || *s == '-' || *end)
		die("script: %s: %s is no number", line, s);
	return n;
}

static void parse_when(struct rule *r, char *w)
{
	char *dash;
	r->from = 1;
	r->to = UINT64_MAX;
	if (!strcmp(w, "*"))
		return;
	dash = strchr(w, '-');
	if (dash)
		*dash = 0;
	r->from = whole(w, r->text);
	if (!dash)
		r->to = r->from;
	else if (dash[1])
		r->to = whole(dash + 1, r->text);
	if (r->from == 0 || r->to < r->from)
		die("script: %s: calls are counted from 1 upwards", r->text);
}

static long parse_delay(const char *s, const char *line)
{
	char *end;
	double d = strtod(s, &end);
	double unit = !strcmp(end, "us") ? 1e3 : !strcmp(end, "ms") ? 1e6 : !strcmp(end, "s") ? 1e9 : 0;
	if (unit == 0 || d < 0 || d * unit > 3.6e12)
		die("script: %s: want a delay like 2000us, 2ms or 1s", line);
	return (long)(d * unit);
}

static int parse_function(const char *name, const char *line)
{
	if (!strcmp(name, "*"))
		return -1;
	for (int i = 0; i < NFUNCTIONS; i++)
		if (!strcmp(names[i], name))
			return i;
	die("script: %s: there is no function %s", line, name);
	return 0;
}

static void parse_rule(struct rule *r, const char *function, char **save)
{
	char *w = strtok_r(NULL, " \t", save);
	int acts = 0;
	r->function = parse_function(function, r->text);
	if (!w)
		die("script: %s: which call is meant?", r->text);
	parse_when(r, w);
	while ((w = strtok_r(NULL, " \t", save))) {
		char *end;
		if (!strncmp(w, "p=", 2)) {
			r->p = strtod(w + 2, &end);
			if (*end || !(r->p > 0 && r->p <= 1))
				die("script: %s: p is above 0 and at most 1", r->text);
		} else if (!strncmp(w, "seed=", 5)) {
			r->seed = whole(w + 5, r->text);
		} else if (!strcmp(w, "after")) {
			r->after = 1;
		} else if (!strcmp(w, "really")) {
			r->really = 1;
		} else if (!strcmp(w, "hang")) {
			r->hang = acts = 1;
		} else if (!strcmp(w, "corrupt")) {
			r->corrupt = acts = 1;
		} else if (!strcmp(w, "overlong")) {
			r->overlong = acts = 1;
		} else if ((!strcmp(w, "return") || !strcmp(w, "delay"))) {
			char *v = strtok_r(NULL, " \t", save);
			if (!v)
				die("script: %s: %s what?", r->text, w);
			acts = 1;
			if (*w == 'd') {
				r->delay = parse_delay(v, r->text);
			} else {
				r->returns = 1;
				r->code = whole(v, r->text);
			}
		} else {
			die("script: %s: what is %s?", r->text, w);
		}
	}
	if (!acts)
		die("script: %s: nothing is to be done", r->text);
}

/* A wish is what the script says of tokens. */
struct wish {
	int removed, reset;
	U sessions, flags;
};

static void parse_token(const struct rule *r, struct wish *wish, char **save)
{
	char *w = strtok_r(NULL, " \t", save), *v = strtok_r(NULL, " \t", save);
	int found = 0;
	if (!w)
		die("script: %s: what of the token?", r->text);
	for (int i = 0; i < ntoken; i++) {
		if (*r->label && strcmp(r->label, token[i].label))
			continue;
		found = 1;
		if (!strcmp(w, "removed") && !v)
			wish[i].removed = 1;
		else if (!strcmp(w, "reset") && !v)
			wish[i].reset = 1;
		else if (!strcmp(w, "sessions") && v)
			wish[i].sessions = whole(v, r->text);
		else if (!strcmp(w, "flags") && v)
			wish[i].flags = whole(v, r->text);
		else
			die("script: %s: want removed, reset, sessions N or flags N", r->text);
	}
	/* Before C_Initialize no token is known; the script is then read again. */
	if (!found && *r->label && state == READY)
		die("script: %s: there is no token %s", r->text, r->label);
}

static void parse(struct script *s, char *text, struct wish *wish)
{
	char *line, *lines = NULL, *save;
	long want_engines = 0;
	for (line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
		struct rule r;
		char *w;
		memset(&r, 0, sizeof r);
		if (strlen(line) >= sizeof r.text)
			die("script: this line is too long: %s", line);
		strcpy(r.text, line);
		if ((w = strchr(line, '#')))
			*w = 0;
		save = NULL;
		w = strtok_r(line, " \t\r", &save);
		if (!w)
			continue;
		if (*w == '@') {
			snprintf(r.label, sizeof r.label, "%s", w + 1);
			w = strtok_r(NULL, " \t", &save);
			if (!w)
				die("script: %s: what of that token?", r.text);
		}
		if (!strcmp(w, "token")) {
			parse_token(&r, wish, &save);
		} else if (!strcmp(w, "engines")) {
			w = strtok_r(NULL, " \t", &save);
			want_engines = w ? (long)whole(w, r.text) : 0;
		} else {
			if (s->n == RULES)
				die("script: more than %d rules", RULES);
			parse_rule(&r, w, &save);
			s->rule[s->n++] = r;
		}
	}
	pthread_mutex_lock(&engines_mu);
	engines = want_engines;
	pthread_cond_broadcast(&engines_free);
	pthread_mutex_unlock(&engines_mu);
}

static void grant(const struct wish *wish)
{
	for (int i = 0; i < ntoken; i++) {
		struct token *t = &token[i];
		int was;
		pthread_mutex_lock(&mu);
		was = t->removed;
		t->removed = wish[i].removed;
		t->sessions = wish[i].sessions;
		t->flags = wish[i].flags;
		pthread_mutex_unlock(&mu);
		if ((wish[i].removed && !was) || wish[i].reset)
			lose(t, 1);
	}
}

/* read_script reads what is new, or, for tokens that were not known before, what
 * is said of tokens once more. */
static void read_script(int tokens_too)
{
	struct stat st;
	struct version v = {0};
	struct wish wish[TOKENS];
	struct script *next;
	char *text = NULL;
	int fd, known;
	if (!*script_path)
		return;
	pthread_mutex_lock(&reading);
	fd = open(script_path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && !fstat(fd, &st))
		v = version_of(&st);
	known = same(&v, &script_version);
	if (known && !tokens_too) { /* somebody else read it */
		if (fd >= 0)
			close(fd);
		pthread_mutex_unlock(&reading);
		return;
	}
	memset(wish, 0, sizeof wish);
	next = calloc(1, sizeof *next);
	text = calloc(1, (size_t)v.size + 1);
	if (!next || !text)
		die("no memory");
	if (fd >= 0 && read(fd, text, (size_t)v.size) != v.size)
		die("script: reading %s: %s", script_path, strerror(errno));
	if (fd >= 0)
		close(fd);
	parse(next, text, wish);
	free(text);
	grant(wish);
	if (known) {
		free(next);
		pthread_mutex_unlock(&reading);
		return;
	}
	script_version = v;
	__atomic_store_n(&script, next, __ATOMIC_SEQ_CST);
	add(&book->scripts, 1);
	pthread_mutex_unlock(&reading);
}

/* refresh reads the script if it is another one. */
static void refresh(void)
{
	struct stat st;
	struct version v = {0}, now;
	if (!*script_path)
		return;
	if (!stat(script_path, &st))
		v = version_of(&st);
	pthread_mutex_lock(&reading); /* also: a script that is being read is waited for */
	now = script_version;
	pthread_mutex_unlock(&reading);
	if (!same(&v, &now))
		read_script(0);
}

static struct script *current(void) { return __atomic_load_n(&script, __ATOMIC_SEQ_CST); }

struct verdict {
	long delay;
	const struct rule *returns, *hangs;
	int corrupt, overlong;
};

static double chance(uint64_t seed, uint64_t n)
{
	uint64_t z = seed * 0x9E3779B97F4A7C15u + n * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int every(int function)
{
	return function > C_GetSlotList_ && function <= C_CancelFunction_;
}

static struct verdict judge(int function, const struct token *t)
{
	struct verdict v = {0};
	struct script *s = current();
	for (int i = 0; s && i < s->n; i++) {
		struct rule *r = &s->rule[i];
		uint64_t n;
		if (r->function < 0 ? !every(function) : r->function != function)
			continue;
		if (*r->label && (!t || strcmp(r->label, t->label)))
			continue;
		n = add(&r->count, 1);
		if (n < r->from || n > r->to || (r->p > 0 && chance(r->seed, n) >= r->p))
			continue;
		v.delay += r->delay;
		v.corrupt |= r->corrupt;
		v.overlong |= r->overlong;
		if (r->returns && !v.returns)
			v.returns = r;
		if (r->hang && !v.hangs)
			v.hangs = r;
	}
	return v;
}

static void delay(long ns)
{
	struct timespec t = {ns / 1000000000, ns % 1000000000};
	if (ns == 0)
		return;
	pthread_mutex_lock(&engines_mu);
	while (engines > 0 && engines_busy >= engines)
		pthread_cond_wait(&engines_free, &engines_mu);
	engines_busy++;
	pthread_mutex_unlock(&engines_mu);
	while (nanosleep(&t, &t) && errno == EINTR)
		;
	pthread_mutex_lock(&engines_mu);
	engines_busy--;
	pthread_cond_signal(&engines_free);
	pthread_mutex_unlock(&engines_mu);
}

/* hang returns when the script has the line no more. */
static void hang(const struct rule *r)
{
	const struct timespec t = {0, 1000000};
	add(&book->hung, 1);
	for (;;) {
		struct script *s;
		int there = 0;
		refresh();
		s = current();
		for (int i = 0; i < s->n && !there; i++)
			there = !strcmp(s->rule[i].text, r->text);
		if (!there)
			break;
		nanosleep(&t, NULL);
	}
	add(&book->hung, -1);
}

/* ---- calls ---- */

static U forward(int f, const U *a)
{
	switch (f) {
#define CALL1 a[0]
#define CALL2 CALL1, a[1]
#define CALL3 CALL2, a[2]
#define CALL4 CALL3, a[3]
#define CALL5 CALL4, a[4]
#define CALL6 CALL5, a[5]
#define CALL8 CALL6, a[6], a[7]
#define TYPE1 U
#define TYPE2 TYPE1, U
#define TYPE3 TYPE2, U
#define TYPE4 TYPE3, U
#define TYPE5 TYPE4, U
#define TYPE6 TYPE5, U
#define TYPE8 TYPE6, U, U
#define FORWARD(i, name, n) \
	case i: \
		return ((U(*)(TYPE##n))real->f[i])(CALL##n);
		FUNCTIONS(FORWARD)
	}
	return GENERAL_ERROR;
}

/* takes_object says which arguments of a function are handles of objects. */
static int takes_object(int f, int i)
{
	switch (f) {
	case C_CopyObject_: case C_DestroyObject_: case C_GetObjectSize_: case C_GetAttributeValue_: case C_SetAttributeValue_: case C_DigestKey_:
		return i == 1;
	case C_EncryptInit_: case C_DecryptInit_: case C_SignInit_: case C_SignRecoverInit_: case C_VerifyInit_: case C_VerifyRecoverInit_:
	case C_UnwrapKey_: case C_DeriveKey_:
		return i == 2;
	case C_WrapKey_:
		return i == 2 || i == 3;
	}
	return 0;
}

enum { EPOCH = 32 }; /* the bits above are those of the token's epoch */

static void give_objects(int f, U epoch, const U *a)
{
	U n = 1;
	U *given[2] = {NULL, NULL};
	switch (f) {
	case C_CreateObject_: given[0] = (U *)a[3]; break;
	case C_CopyObject_: given[0] = (U *)a[4]; break;
	case C_GenerateKey_: given[0] = (U *)a[4]; break;
	case C_GenerateKeyPair_: given[0] = (U *)a[6]; given[1] = (U *)a[7]; break;
	case C_UnwrapKey_: given[0] = (U *)a[7]; break;
	case C_DeriveKey_: given[0] = (U *)a[5]; break;
	case C_FindObjects_: given[0] = (U *)a[1]; n = *(U *)a[3]; break;
	}
	for (int g = 0; g < 2; g++)
		for (U i = 0; given[g] && i < n; i++)
			given[g][i] |= epoch << EPOCH;
}

/* with_session makes a call of a session. */
static U with_session(int f, const U *a, struct session *s)
{
	U b[8], rv, epoch;
	struct token *t = s->token;
	memcpy(b, a, sizeof b);
	rv = begin_real(s, t);
	if (rv)
		return rv;
	b[0] = s->real;
	epoch = t->epoch; /* which nobody changes while we are in the real module */
	for (int i = 1; i < 4; i++) {
		if (!takes_object(f, i))
			continue;
		if (b[i] >> EPOCH != epoch) {
			end_real(t);
			return i == 1 ? OBJECT_HANDLE_INVALID : KEY_HANDLE_INVALID;
		}
		b[i] &= (1UL << EPOCH) - 1;
	}
	rv = forward(f, b);
	if (rv == OK) {
		give_objects(f, epoch, b);
		if (f == C_Sign_ && a[3]) {
			add(&book->signatures, 1);
			add(&book->token[number(t)].signatures, 1);
			signed_data((const unsigned char *)a[1], a[2]);
		}
	}
	if (f == C_Login_) {
		add(&book->logins, 1);
		add(&book->token[number(t)].logins, 1);
		if (rv == PIN_INCORRECT) {
			add(&book->wrong_pins, 1);
			add(&book->token[number(t)].wrong_pins, 1);
		}
	}
	if (f == C_CloseSession_ && rv == OK) {
		pthread_mutex_lock(&mu);
		end_session(s, CLOSED);
		pthread_mutex_unlock(&mu);
	}
	end_real(t);
	return rv;
}

static U open_session(const U *a, struct token *t, int denied)
{
	U rv, handle = 0, b[8];
	struct session *s = NULL;
	if (!t) /* no token that we know: as the real module has it */
		return forward(C_OpenSession_, a);
	rv = begin_real(NULL, t);
	if (rv)
		return rv;
	pthread_mutex_lock(&mu);
	if (t->sessions && book->token[number(t)].open >= t->sessions)
		rv = SESSION_COUNT;
	else if (nsession == SESSIONS)
		die("more than %d sessions", SESSIONS);
	else { /* counted before it is open, so that two can't have the last one */
		s = &session[nsession];
		handle = FIRST_SESSION + nsession++;
		s->token = t;
		s->state = OPEN;
		peak(&book->peak_open, add(&book->open, 1));
		peak(&book->token[number(t)].peak_open, add(&book->token[number(t)].open, 1));
	}
	pthread_mutex_unlock(&mu);
	if (s) {
		memcpy(b, a, sizeof b);
		b[4] = (U)&s->real;
		rv = forward(C_OpenSession_, b);
		if (rv == OK && denied) /* nobody will ever close it */
			real1(C_CloseSession_, s->real);
		pthread_mutex_lock(&mu);
		if (rv != OK || denied)
			end_session(s, CLOSED);
		else
			*(U *)a[4] = handle;
		pthread_mutex_unlock(&mu);
	}
	end_real(t);
	return rv;
}

static U slot_list(const U *a)
{
	U slots[256], n = 256, kept = 0, rv;
	int present = (a[0] & 0xff) != 0;
	rv = ((U(*)(U, void *, void *))real->f[C_GetSlotList_])(present, slots, &n);
	if (rv)
		return rv;
	pthread_mutex_lock(&mu);
	for (U i = 0; i < n; i++) {
		struct token *t = token_of_slot(slots[i]);
		if (!(present && t && t->removed))
			slots[kept++] = slots[i];
	}
	pthread_mutex_unlock(&mu);
	n = *(U *)a[2];
	*(U *)a[2] = kept;
	if (!a[1])
		return OK;
	if (n < kept)
		return BUFFER_TOO_SMALL;
	memcpy((void *)a[1], slots, kept * sizeof(U));
	return OK;
}

/* with_slot makes a call of a slot. */
static U with_slot(int f, const U *a, struct token *t)
{
	U rv, flags, n;
	unsigned char *info = (unsigned char *)a[1];
	if (f == C_GetSlotInfo_) { /* a slot is there without its token */
		rv = forward(f, a);
		if (rv == OK && t && t->removed) {
			memcpy(&flags, info + 96, sizeof flags);
			flags &= ~1UL; /* CKF_TOKEN_PRESENT */
			memcpy(info + 96, &flags, sizeof flags);
		}
		return rv;
	}
	rv = begin_real(NULL, t);
	if (rv)
		return rv;
	rv = forward(f, a);
	if (f == C_GetTokenInfo_ && rv == OK && t) {
		memcpy(&flags, info + 96, sizeof flags);
		flags |= t->flags;
		memcpy(info + 96, &flags, sizeof flags);
		if (t->sessions) {
			memcpy(info + 104, &t->sessions, sizeof n);
			n = book->token[number(t)].open;
			memcpy(info + 112, &n, sizeof n);
		}
	}
	if (f == C_CloseAllSessions_ && rv == OK && t) {
		pthread_mutex_lock(&mu);
		for (U i = 0; i < nsession; i++)
			if (session[i].token == t && session[i].state == OPEN) {
				if (session[i].busy)
					violation(names[f], "a call of one of the sessions is under way");
				end_session(&session[i], CLOSED);
			}
		pthread_mutex_unlock(&mu);
	}
	end_real(t);
	return rv;
}

static U initialize(const U *a)
{
	U rv, flags = 0;
	int was_lost;
	if (a[0])
		memcpy(&flags, (unsigned char *)a[0] + 32, sizeof flags);
	if (!(flags & 2))
		violation("C_Initialize", "without CKF_OS_LOCKING_OK");
	pthread_mutex_lock(&mu);
	if (state == READY && !excuse_initialize)
		violation("C_Initialize", "it is initialized");
	was_lost = state == LOST;
	pthread_mutex_unlock(&mu);
	rv = was_lost ? OK : forward(C_Initialize_, a);
	if (rv == OK) {
		int found = discover();
		pthread_mutex_lock(&mu);
		state = READY;
		excuse_initialize = 0;
		pthread_mutex_unlock(&mu);
		add(&book->initialized, 1);
		read_script(found > 0);
	}
	return rv;
}

static void end_all(int how, int epoch)
{
	pthread_mutex_lock(&mu);
	for (U i = 0; i < nsession; i++)
		if (session[i].state == OPEN || how == CLOSED)
			end_session(&session[i], how);
	for (int i = 0; epoch && i < ntoken; i++)
		token[i].epoch++;
	pthread_mutex_unlock(&mu);
}

static U finalize(const U *a)
{
	U rv;
	if (__atomic_load_n(&book->in_flight, __ATOMIC_SEQ_CST) > 1)
		violation("C_Finalize", "calls are under way");
	pthread_mutex_lock(&mu);
	state = FINALIZING;
	pthread_mutex_unlock(&mu);
	rv = forward(C_Finalize_, a);
	pthread_mutex_lock(&mu);
	state = rv == OK ? UNUSED : READY;
	pthread_mutex_unlock(&mu);
	if (rv == OK) {
		add(&book->finalized, 1);
		end_all(CLOSED, 1);
	}
	return rv;
}

/* come_true makes an injected code true. */
static void come_true(U code, struct session *s, struct token *t)
{
	switch (code) {
	case SESSION_CLOSED:
	case SESSION_HANDLE_INVALID:
		if (s && begin_real(s, t) == OK) {
			real1(C_CloseSession_, s->real);
			pthread_mutex_lock(&mu);
			end_session(s, DEAD);
			pthread_mutex_unlock(&mu);
			end_real(t);
		}
		break;
	case DEVICE_REMOVED:
	case TOKEN_NOT_PRESENT:
		if (t)
			lose(t, 1);
		break;
	case USER_NOT_LOGGED_IN:
		if (t)
			lose(t, 0);
		break;
	case NOT_INITIALIZED:
		pthread_mutex_lock(&mu);
		if (state == READY) {
			state = LOST;
			add(&book->finalized, 1);
		}
		pthread_mutex_unlock(&mu);
		for (int i = 0; i < ntoken; i++)
			lose(&token[i], 1);
		break;
	}
}

static U perform(int f, const U *a, struct session *s, struct token *t, int denied)
{
	if (s)
		return with_session(f, a, s);
	switch (f) {
	case C_Initialize_: return initialize(a);
	case C_Finalize_: return finalize(a);
	case C_GetSlotList_: return slot_list(a);
	case C_OpenSession_: return open_session(a, t, denied);
	case C_GetInfo_: case C_WaitForSlotEvent_: return forward(f, a);
	}
	return with_slot(f, a, t);
}

static U play(int f, int which, const U *a, struct session *s, struct token *t)
{
	struct verdict v = judge(which, t);
	U rv = OK;
	int denied = v.returns && v.returns->after;
	delay(v.delay);
	if (v.hangs && !v.hangs->after)
		hang(v.hangs);
	if (!v.returns || denied)
		rv = perform(f, a, s, t, denied);
	if (v.hangs && v.hangs->after)
		hang(v.hangs);
	if (v.corrupt && rv == OK && (which == C_Sign_ || which == C_Decrypt_) && *(U *)a[4] > 0)
		((unsigned char *)a[3])[*(U *)a[4] - 1] ^= 1;
	if (v.overlong && rv == OK && which == C_Sign_)
		*(U *)a[4] += 1UL << 40;
	if (v.returns) {
		add(&book->function[which].injected, 1);
		rv = v.returns->code;
		if (v.returns->really)
			come_true(rv, s, t);
		pthread_mutex_lock(&mu);
		if (rv == NOT_INITIALIZED || f == C_Initialize_ || f == C_Finalize_)
			excuse_initialize = 1;
		if (s && f == C_CloseSession_)
			s->excused = 1;
		pthread_mutex_unlock(&mu);
	}
	return rv;
}

static int names_slot(int f)
{
	return (f >= C_GetSlotInfo_ && f <= C_InitToken_) || f == C_OpenSession_ || f == C_CloseAllSessions_;
}

static int names_session(int f)
{
	return !names_slot(f) && f >= C_InitPIN_ && f <= C_CancelFunction_;
}

/* find_session takes the session for one call, or says why it can't be had. */
static U find_session(int f, U handle, struct session **out)
{
	U rv = OK;
	struct session *s;
	if (handle < FIRST_SESSION || handle >= FIRST_SESSION + nsession) {
		violation(names[f], "no session ever had that handle");
		return SESSION_HANDLE_INVALID;
	}
	s = &session[handle - FIRST_SESSION];
	if (s->busy)
		violation(names[f], "another call of the session is under way");
	if (s->state == DEAD) {
		rv = s->token->removed ? TOKEN_NOT_PRESENT : SESSION_HANDLE_INVALID;
		if (f == C_CloseSession_)
			s->state = CLOSED;
	} else if (s->state != OPEN) {
		rv = SESSION_HANDLE_INVALID;
		if (!s->excused)
			violation(names[f], "the session is closed");
	}
	if (rv)
		return rv;
	s->busy++;
	*out = s;
	return OK;
}

/* operations keeps to what the caller was told of them. */
static void operation_begins(int f, const struct session *s)
{
	int begun = f == C_FindObjectsInit_ ? FIND : f == C_SignInit_ ? SIGN : f == C_DecryptInit_ ? DECRYPT : 0;
	int used = f == C_Sign_ || f == C_SignUpdate_ || f == C_SignFinal_ ? SIGN : f == C_Decrypt_ ? DECRYPT : f == C_FindObjects_ ? FIND : 0;
	if (s->active & begun)
		violation(names[f], "such an operation is active");
	if (used && !(s->active & used))
		violation(names[f], "no such operation was begun");
}

static void operation_ends(int f, int which, struct session *s, U rv)
{
	switch (f) {
	case C_FindObjectsInit_: s->active |= rv == OK ? FIND : 0; break;
	case C_SignInit_: s->active |= rv == OK ? SIGN : 0; break;
	case C_DecryptInit_: s->active |= rv == OK ? DECRYPT : 0; break;
	case C_FindObjectsFinal_: s->active &= (unsigned char)~FIND; break;
	case C_Sign_:
	case C_SignFinal_:
		if (rv != BUFFER_TOO_SMALL && !(rv == OK && which == SIGN_LENGTH))
			s->active &= (unsigned char)~SIGN;
		break;
	case C_Decrypt_:
		if (rv != BUFFER_TOO_SMALL && !(rv == OK && which == DECRYPT_LENGTH))
			s->active &= (unsigned char)~DECRYPT;
		break;
	}
}

static U begin(int f, const U *a, struct session **s, struct token **t)
{
	U rv = OK;
	pthread_mutex_lock(&mu);
	if (f != C_Initialize_ && state != READY) {
		if (state != LOST && !(state == UNUSED && excuse_initialize))
			violation(names[f], state == FINALIZING ? "C_Finalize is under way" : "the module is not initialized");
		rv = NOT_INITIALIZED;
	} else if (names_session(f)) {
		rv = find_session(f, a[0], s);
		if (rv == OK) {
			operation_begins(f, *s);
			*t = (*s)->token;
		}
	} else if (names_slot(f)) {
		*t = token_of_slot(a[0]);
	}
	pthread_mutex_unlock(&mu);
	return rv;
}

static U call(int f, const U *a)
{
	struct session *s = NULL;
	struct token *t = NULL;
	U rv;
	int which = f;
	if (f == C_Sign_ && !a[3])
		which = SIGN_LENGTH;
	if (f == C_Decrypt_ && !a[3])
		which = DECRYPT_LENGTH;
	refresh();
	add(&book->calls, 1);
	add(&book->function[which].calls, 1);
	peak(&book->peak_in_flight, add(&book->in_flight, 1));
	rv = begin(f, a, &s, &t);
	if (rv == OK) {
		if (t) {
			add(&book->token[number(t)].calls, 1);
			peak(&book->token[number(t)].peak_in_flight, add(&book->token[number(t)].in_flight, 1));
		}
		rv = play(f, which, a, s, t);
		if (t)
			add(&book->token[number(t)].in_flight, -1);
	}
	if (s) {
		pthread_mutex_lock(&mu);
		operation_ends(f, which, s, rv);
		s->busy--;
		pthread_mutex_unlock(&mu);
	}
	add(&book->in_flight, -1);
	return rv;
}

#define PARAMS1 U a
#define PARAMS2 PARAMS1, U b
#define PARAMS3 PARAMS2, U c
#define PARAMS4 PARAMS3, U d
#define PARAMS5 PARAMS4, U e
#define PARAMS6 PARAMS5, U g
#define PARAMS8 PARAMS6, U h, U i
#define ARGS1 a
#define ARGS2 ARGS1, b
#define ARGS3 ARGS2, c
#define ARGS4 ARGS3, d
#define ARGS5 ARGS4, e
#define ARGS6 ARGS5, g
#define ARGS8 ARGS6, h, i
#define DEFINE(index, name, n) \
	static U f_##name(PARAMS##n) { return call(index, (const U[8]){ARGS##n}); }
FUNCTIONS(DEFINE)

/* ---- loading ---- */

static char module_path[1024], book_path[1024];

static void parameter(const char *name, const char *variable, char *out, size_t n)
{
	const char *v = getenv(variable);
	char path[1100], line[1200];
	Dl_info self;
	FILE *f = NULL;
	if (dladdr(&mine, &self)) {
		snprintf(path, sizeof path, "%s.conf", self.dli_fname);
		f = fopen(path, "re");
	}
	if (!f) {
		snprintf(out, n, "%s", v ? v : "");
		return;
	}
	while (fgets(line, sizeof line, f)) {
		size_t k = strlen(name);
		line[strcspn(line, "\r\n")] = 0;
		if (!strncmp(line, name, k) && line[k] == ' ')
			snprintf(out, n, "%s", line + k + 1);
	}
	fclose(f);
}

static void open_book(void)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	if (*book_path) {
		fd = open(book_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, sizeof *book))
			die("opening the book %s: %s", book_path, strerror(errno));
		flags = MAP_SHARED;
	}
	book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (book == MAP_FAILED)
		die("mapping the book: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	for (int i = 0; i < NFUNCTIONS; i++)
		snprintf(book->function[i].name, sizeof book->function[i].name, "%s", names[i]);
	book->magic = 0x46415553; /* "SUAF" */
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

__attribute__((visibility("default"))) U C_GetFunctionList(struct list **out)
{
	pthread_mutex_lock(&loading);
	if (!real) {
		void *h;
		U (*get)(struct list **);
		struct list *behind = NULL;
		parameter("module", "SECSY_FAULT_MODULE", module_path, sizeof module_path);
		parameter("script", "SECSY_FAULT_SCRIPT", script_path, sizeof script_path);
		parameter("book", "SECSY_FAULT_BOOK", book_path, sizeof book_path);
		h = *module_path ? dlopen(module_path, RTLD_NOW | RTLD_LOCAL) : NULL;
		get = h ? (U(*)(struct list **))dlsym(h, "C_GetFunctionList") : NULL;
		if (!get || get(&behind) != OK)
			die("the module behind this one, \"%s\", can't be loaded: %s", module_path, h ? "no function list" : dlerror());
		open_book();
		memcpy(mine.version, behind->version, sizeof mine.version);
		mine.f[C_GetFunctionList_] = (void *)C_GetFunctionList;
#define SET(index, name, n) mine.f[index] = (void *)f_##name;
		FUNCTIONS(SET)
		real = behind;
	}
	pthread_mutex_unlock(&loading);
	*out = &mine;
	return OK;
}
