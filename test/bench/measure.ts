/**
 * Measures whole processes: wall time, CPU time of the process and all children it has waited for, and peak memory,
 * as wait4(2) gives them. The waiting is done by a small perl program (perl-base is on every Debian), since a child's
 * peak includes what its parent had resident when it forked, and Node alone has 40 MB.
 */
import { describeEnd, type Finished, run } from '../support/cluster/process.ts';

/** Runs argv somewhere and says how it ended: `onHost`, or exec of a node. */
export type MeasureOn = (argv: readonly string[], timeoutMs: number) => Promise<Finished>;

/** With nothing of the caller's environment, which could change what is measured. */
export const onHost: MeasureOn = (argv, timeoutMs) =>
  run(argv, {
    timeoutMs,
    env: { PATH: '/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    cwd: '/',
  });

export type Usage = { readonly wallMs: number; readonly cpuMs: number; readonly peakMiB: number };

/** wait4 and clock_gettime by number, as perl wants them. */
const SYSCALLS: Readonly<Record<string, readonly [number, number]>> = { x64: [61, 228], arm64: [260, 113] };

const WAITER = `
use strict;
my ($wait4, $clock_gettime, @argv) = @ARGV;
sub now { my $t = "\\0" x 16; syscall($clock_gettime + 0, 1, $t) == 0 or die "clock_gettime: $!"; my ($s, $n) = unpack "q2", $t; $s * 1e3 + $n / 1e6 }
my $start = now();
my $pid = fork() // die "fork: $!";
if ($pid == 0) {
  open(STDOUT, '>', '/dev/null') or die $!;
  exec { $argv[0] } @argv or die "$argv[0]: $!";
}
my ($status, $usage) = ("\\0" x 8, "\\0" x 256);
syscall($wait4 + 0, $pid, $status, 0, $usage) == $pid or die "wait4: $!";
my $wall = now() - $start;
my ($us, $uu, $ss, $su, $kib) = unpack "q5", $usage;
printf '{"status":%d,"wallMs":%.3f,"cpuMs":%.3f,"peakMiB":%.3f}', unpack("i", $status), $wall, ($us + $ss) * 1e3 + ($uu + $su) / 1e3, $kib / 1024;
`;

/** Runs a command by absolute path once, to its end; it must exit 0. Its standard output is thrown away. */
export const measureOnce = async (on: MeasureOn, argv: readonly string[]): Promise<Usage> => {
  const numbers = SYSCALLS[process.arch];
  if (numbers === undefined) throw new Error(`no system call numbers for ${process.arch}`);
  const end = await on(['/usr/bin/perl', '-e', WAITER, '--', ...numbers.map(String), ...argv], 300_000);
  const said = end.stderr.toString('utf8').trim().slice(-2000);
  if (end.exitCode !== 0) throw new Error(`measuring ${argv.join(' ')}: ${describeEnd(end)}\n${said}`);
  const { status, ...usage } = JSON.parse(end.stdout.toString('utf8')) as Usage & { readonly status: number };
  if (status !== 0) throw new Error(`${argv.join(' ')} ended with wait status ${status}\n${said}`);
  return usage;
};

/**
 * Runs `subject` and `peer` by turns, so that what else the machine does hits both; who goes first changes each round.
 * One round before the counted ones warms the caches.
 */
export const interleave = async <T>(
  rounds: number,
  subject: () => Promise<T>,
  peer: () => Promise<T>,
): Promise<{ readonly subject: readonly T[]; readonly peer: readonly T[] }> => {
  await subject();
  await peer();
  const runs: { subject: T[]; peer: T[] } = { subject: [], peer: [] };
  for (let round = 0; round < rounds; round += 1) {
    if (round % 2 === 0) runs.subject.push(await subject());
    runs.peer.push(await peer());
    if (round % 2 === 1) runs.subject.push(await subject());
  }
  return runs;
};
