/**
 * The page is the contract; these tests keep it and the code from drifting apart.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { ERRORS, type ErrorCode } from '../../../src/base/errors.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import { statusOf } from '../../../src/rpc/decode.ts';
import { CHANNEL, MESSAGES, PROTOCOL, STREAM, STREAMS } from '../../../src/rpc/message.ts';
import { RPC_TIMES } from '../../../src/rpc/times.ts';

const path = fileURLToPath(new URL('../../../man/xce-sandbox-protocol.7', import.meta.url));
const page = readFileSync(path, 'utf8');

/** 65536 as the page writes it. */
const grouped = (value: number): string => value.toLocaleString('en-US');

/** Rows of a section: the cells of each `.It` of its column lists. */
const rows = (heading: string): string[][] => {
  const start = page.indexOf(heading);
  expect(start, heading).toBeGreaterThan(-1);
  const end = page.slice(start + heading.length).search(/^\.S[hs] /m);
  const section = page.slice(start, end < 0 ? undefined : start + heading.length + end);
  return [...section.matchAll(/^\.It (.*)$/gm)].map(([, cells = '']) =>
    cells.split(' Ta ').map((cell) => cell.trim()),
  );
};

const firstCells = (heading: string): string[] => rows(heading).map(([cell = '']) => cell);

describe('the page', () => {
  test('is clean mdoc', () => {
    const said = execFileSync('mandoc', ['-T', 'lint', '-W', 'warning', path], { encoding: 'utf8' });
    expect(said).toBe('');
  });

  test('has every verb, and no other', () => {
    const unary = firstCells('.Ss Unary verbs').filter((cell) => !cell.startsWith('Em'));
    expect(unary.sort()).toEqual(Object.keys(MESSAGES).sort());
    const streams = firstCells('.Ss Stream verbs').filter((cell) => /^[a-z]/.test(cell));
    expect(streams.sort()).toEqual(Object.keys(STREAMS).sort());
    for (const verb of [...Object.keys(MESSAGES), ...Object.keys(STREAMS)])
      expect(page).toContain(`\n.Ss ${verb}\n`);
  });

  test('has every key of every message in the section of its verb', () => {
    const sections = new Map(page.split(/^\.Ss /m).map((part) => [part.slice(0, part.indexOf('\n')), part]));
    const wanted = [
      ...Object.entries(MESSAGES).map(([verb, { request, response }]) => ({
        verb,
        keys: [...Object.keys(request.entries), ...Object.keys(response.entries)],
      })),
      ...Object.entries(STREAMS).map(([verb, head]) => ({ verb, keys: Object.keys(head.entries) })),
    ];
    for (const { verb, keys } of wanted) {
      for (const key of keys)
        expect(sections.get(verb), `${verb}: ${key}`).toMatch(new RegExp(`\\b${key}\\b`));
    }
  });

  test('has every channel with its number', () => {
    const listed = rows('.Ss Stream verbs').filter(([cell = '']) => /^[0-9]$/.test(cell) && Number(cell) < 8);
    const named = new Map(
      listed.filter(([, name = '']) => /^[a-z]/.test(name)).map(([cell, name]) => [Number(cell), name]),
    );
    const word = (channel: string): string => (channel === 'endOfStdin' ? 'end-of-stdin' : channel);
    for (const [channel, number] of Object.entries(CHANNEL)) expect(named.get(number)).toBe(word(channel));
    expect(named.size).toBe(Object.keys(CHANNEL).length);
  });

  test('gives each code of its table the status that the server sends', () => {
    const listed = rows('.Sh ERROR CODES').filter(([, status = '']) => /^[0-9]{3}$/.test(status));
    expect(listed.length).toBeGreaterThan(5);
    for (const [code = '', status] of listed) {
      if (code !== 'any other') expect(statusOf(code as ErrorCode), code).toBe(Number(status));
    }
    const coded = listed.map(([code]) => code);
    for (const code of Object.keys(ERRORS) as ErrorCode[]) {
      expect(coded.includes(code), code).toBe(statusOf(code) !== 409);
    }
  });

  test('states the limits and durations of the code', () => {
    expect(page).toContain(`version ${PROTOCOL.major}.${PROTOCOL.minor}.`);
    for (const value of [
      LIMITS.messageBytesMax,
      LIMITS.frameBytesMax,
      LIMITS.headerBytesMax,
      LIMITS.connectionsMax,
      LIMITS.argvCountMax,
      LIMITS.envCountMax,
      LIMITS.sandboxesMax,
      STREAM.stdinCreditBytes,
    ]) {
      expect(page).toContain(grouped(value));
    }
    expect(page).toContain(
      `.It requests that are open, per connection Ta ${LIMITS.streamsPerConnectionMax}\n`,
    );
    expect(page).toContain(`per connection of a sandbox Ta ${LIMITS.streamsPerSandboxConnectionMax}\n`);
    expect(page).toContain(`of all peers but sandboxes Ta ${LIMITS.requestBytesInAllMax >> 20} MiB\n`);
    expect(page).toContain(`of one sandbox Ta ${LIMITS.sandboxRequestBytesInAllMax >> 20} MiB\n`);
    expect(page).toContain(`TLS handshake Ta ${RPC_TIMES.handshakeMs / 1000} seconds\n`);
    expect(page).toContain(`without an open request Ta ${RPC_TIMES.idleMs / 1000} seconds\n`);
    expect(page).toContain(`a request's body or head Ta ${RPC_TIMES.requestMs / 1000} seconds\n`);
    expect(page).toContain(`PING every ${RPC_TIMES.pingMs / 1000} seconds`);
    expect(page).toContain(`missing for ${RPC_TIMES.pingTimeoutMs / 1000} seconds`);
  });
});
