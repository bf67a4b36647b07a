import { Counter, Gauge, Registry } from 'prom-client';
import type { Metrics } from '../operations/worker-metrics.ts';

/** The text format of Prometheus, which its collectors of text files read. */
export const renderMetrics = ({ families }: Metrics): Promise<string> => {
  const registry = new Registry();
  for (const { name, type, help, samples } of families) {
    const labelNames = [...new Set(samples.flatMap(({ labels }) => Object.keys(labels)))];
    const options = { name, help, labelNames, registers: [registry] };
    if (type === 'counter') {
      const counter = new Counter(options);
      for (const { labels, value } of samples) counter.inc(labels, value);
    } else {
      const gauge = new Gauge(options);
      for (const { labels, value } of samples) gauge.set(labels, value);
    }
  }
  return registry.metrics();
};
