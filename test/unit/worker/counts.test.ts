import { describe, expect, test } from 'vitest';
import { renderMetrics } from '../../../src/cli/render-metrics.ts';
import { decodeResponse } from '../../../src/rpc/decode.ts';
import { Counts, type Holdings } from '../../../src/worker/counts.ts';

const HOLDINGS: Holdings = {
  version: '1.2.3',
  startedMs: 1_000_000,
  wallMs: 2_000_000,
  certificateEndMs: 1_500_000,
  residentBytes: 60 << 20,
  sandboxes: [
    { state: 'ready', steps: 2 },
    { state: 'dirty', steps: 0 },
  ],
  dirtyLeases: 1,
};

const textOf = async (counts: Counts): Promise<readonly string[]> => {
  const answer = Buffer.from(JSON.stringify({ node: 'n1', families: counts.families(HOLDINGS) }));
  return (await renderMetrics(decodeResponse('metrics', answer))).split('\n');
};

describe('what a worker counts', () => {
  test('shows a stream that goes on and says nothing new, and one that began and ended unseen', () => {
    const counts = new Counts();
    const before = counts.activity;
    counts.open(1);
    expect(counts.activity.open).toBe(1);
    counts.open(-1);
    expect(counts.activity.open).toBe(before.open);
    expect(counts.activity.changes).not.toBe(before.changes);
  });

  test('reads as the text format of Prometheus on the other side of the wire', async () => {
    const counts = new Counts();
    counts.request('prepare', 'ok');
    counts.request('prepare', 'ok');
    counts.request('step', 'ticket-nonce');
    counts.request('-', 'protocol');
    counts.stepStarted('task');
    counts.stepEnded('exit-code');
    counts.connection('tls', 1);
    counts.connection('tls', 1);
    counts.connection('tls', -1);
    counts.connectionRefused('local', 'peer-role');
    counts.bytes('stdout', 300);
    counts.bytes('stdout', 7);
    counts.open(1);
    const text = await textOf(counts);
    for (const line of [
      '# TYPE xce_worker_requests_total counter',
      'xce_worker_requests_total{verb="prepare",code="ok"} 2',
      'xce_worker_requests_total{verb="step",code="ticket-nonce"} 1',
      'xce_worker_requests_total{verb="-",code="protocol"} 1',
      'xce_worker_steps_started_total{kind="task"} 1',
      'xce_worker_steps_ended_total{result="exit-code"} 1',
      '# TYPE xce_worker_connections gauge',
      'xce_worker_connections{listener="tls"} 1',
      'xce_worker_connections_refused_total{listener="local",code="peer-role"} 1',
      'xce_worker_stream_bytes_total{channel="stdout"} 307',
      'xce_worker_requests_open 1',
      'xce_worker_sandboxes{state="ready"} 1',
      'xce_worker_sandboxes{state="lost"} 0',
      'xce_worker_steps 2',
      'xce_worker_dirty_leases 1',
      'xce_worker_certificate_remaining_seconds -500',
      'xce_worker_build_info{version="1.2.3"} 1',
    ]) {
      expect(text).toContain(line);
    }
  });

  test('takes a result that systemd does not name as other, so that nobody makes up labels', async () => {
    const counts = new Counts();
    for (let index = 0; index < 5000; index += 1) counts.stepEnded(`made up ${index}`);
    const text = await textOf(counts);
    expect(text.filter((line) => line.startsWith('xce_worker_steps_ended_total{'))).toEqual([
      'xce_worker_steps_ended_total{result="other"} 5000',
    ]);
  });
});
